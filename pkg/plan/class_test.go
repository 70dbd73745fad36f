package plan

import "testing"

func TestChainNamesLeadBackToTheirClasses(t *testing.T) {
	seen := map[string]class{}
	values := map[uint32]class{}
	l := newLayout(0)
	for _, c := range l.samples() {
		for _, n := range []uint32{1, 10, 86400} {
			c.n = n
			if other, ok := seen[c.chain()]; ok {
				t.Fatalf("%v and %v have the same chain %s", c, other, c.chain())
			}
			seen[c.chain()] = c
			if got, ok := classOf(c.chain()); !ok || got != c {
				t.Errorf("classOf(%q) = %v, %v, want %v", c.chain(), got, ok, c)
			}
			v := c.value()
			if other, ok := values[v.AsUint32()]; ok {
				t.Errorf("%v and %v have the same number", c, other)
			}
			values[v.AsUint32()] = c
		}
	}
	for _, name := range []string{"services", "external-local", "cluster-", "cluster-x", "cluster-007", "nonsense-3", "cluster-16777216", ""} {
		if c, ok := classOf(name); ok {
			t.Errorf("classOf(%q) = %v", name, c)
		}
	}
}
