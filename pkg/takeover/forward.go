package takeover

import "slices"

// LegacyForwardDrops lists the commands, iptables-legacy and ip6tables-legacy, in whose table filter the chain FORWARD drops what no
// rule accepts. A table that isn't there isn't asked for.
func LegacyForwardDrops() (commands []string, err error) {
	err = eachLegacy(func(s *xtables, table string) error {
		if table != "filter" {
			return nil
		}
		b, err := s.read(table)
		if err != nil {
			return err
		}
		c, err := b.parse(table)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(c.chains, func(ch chain) bool { return ch.builtin && ch.name == "FORWARD" && ch.drops }) {
			commands = append(commands, s.command)
		}
		return nil
	})
	return commands, err
}
