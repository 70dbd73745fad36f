package hostile

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
)

// mostGrowth is the permitted growth of memory in MiB: garbage that Go has not returned yet.
const mostGrowth = 40

// TestConflictsAreForgotten: in each round, two Services claim the same 5,000 keys, other keys than before. Beside them, one conflict lasts.
// The program's memory must not grow.
func TestConflictsAreForgotten(t *testing.T) {
	n := newBank(t)
	claims := func(file, ip string, keys int) {
		var list []runtime.Object
		for i := range 2 {
			s := service(fmt.Sprintf("evil/%s-%d", file, i), fmt.Sprintf("10.96.7.%d", len(file)*2+i))
			s.Spec.Ports, s.Spec.ExternalIPs = ports(1, 50), texts(addresses(ip, keys/50, 1))
			list = append(list, s)
		}
		n.put(file, list...)
	}
	claims("lasting", "198.19.255.1", 50)
	n.grows(60, func(round int) { claims("passing", fmt.Sprintf("198.18.%d.1", round), 5_000) })
}

// grows repeats an action in many rounds, each with a change of bank. In the second half, memory must not grow by more than mostGrowth.
func (n *node) grows(rounds int, do func(round int)) {
	n.Helper()
	half := 0.0
	for round := range rounds {
		if round == rounds/2 {
			half = n.memory("VmRSS")
		}
		do(round)
		n.bank()
	}
	n.atMost("MiB of growth", n.memory("VmRSS")-half, mostGrowth)
}
