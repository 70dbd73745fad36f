package takeover

import "slices"

// LegacyForwardDrops returns the backends, iptables-legacy or ip6tables-legacy, in which chain FORWARD of table
// filter has the policy drop. It does not read missing tables, because this would create them.
func LegacyForwardDrops() (commands []string, err error) {
	err = eachLegacy(func(s *xtables, table string) error {
		if table != "filter" {
			return nil
		}
		_, c, err := s.content(table)
		if err != nil {
			return err
		}
		drops := func(ch chain) bool { return ch.builtin && ch.name == "FORWARD" && ch.drops }
		if slices.ContainsFunc(c.chains, drops) {
			commands = append(commands, s.command)
		}
		return nil
	})
	return commands, err
}
