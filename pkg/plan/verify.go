package plan

// FilledByPackets reports whether packets add the elements of the set of that name: what is in it is nobody's mistake.
func FilledByPackets(set string) bool { return Remembers(set) || set == unusedPortsSet }

// Remembers reports whether clients are remembered in the set of that name.
func Remembers(set string) bool { return set == affinitySet }
