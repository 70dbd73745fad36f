package apply

import (
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestAllFormsOfRulesAreReadBack: for all forms of rules, the comparison finds no difference between the kernel's rules and the plan.
func TestAllFormsOfRulesAreReadBack(t *testing.T) {
	for name, change := range map[string]func(*plan.Options){
		"the test's options": func(*plan.Options) {},
		"masquerade all":     func(o *plan.Options) { o.MasqueradeAll = true },
		"another mark":       func(o *plan.Options) { o.MasqueradeMark = 8 },
		"any node address":   func(o *plan.Options) { o.AnyNodeAddress = [2]bool{true, true} },
		"no local pods":      func(o *plan.Options) { o.LocalPods = [2]plan.LocalPods{} },
		"pods by a bridge":   func(o *plan.Options) { o.LocalPods = [2]plan.LocalPods{{Interface: "cni0"}, {Interface: "cni0"}} },
		"pods by a prefix":   func(o *plan.Options) { o.LocalPods = [2]plan.LocalPods{{Interface: "cali", InterfacePrefix: true}, {}} },
		"one family":         func(o *plan.Options) { o.Families = []inet.Family{inet.IPv6} },
	} {
		t.Run(name, func(t *testing.T) {
			lab.EnterNamespace(t)
			o := options()
			change(&o)
			k, p := open(t), plan.New(o)
			cluster(p)
			mustSync(t, k, p, Full)
			if wrong, _, err := findDifference(k.conn, k.states, k.tables); wrong != "" || err != nil {
				t.Errorf("%q, %v", wrong, err)
			}
		})
	}
}
