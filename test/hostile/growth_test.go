package hostile

import (
	"fmt"
	"net/http"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// mostGrowth is the permitted growth of live objects in MiB. Without the removal of forgotten conflicts, they grow by
// 12 and more.
const mostGrowth = 10

// TestConflictsAreForgotten: in each round, two Services claim the same 5,000 keys, other keys than before. Beside them, one conflict lasts.
// The program's memory must not grow.
func TestConflictsAreForgotten(t *testing.T) {
	n := newBank(t, "--profiling")
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
	n.grows(120, func(round int) { claims("passing", fmt.Sprintf("198.18.%d.1", round), 5_000) })
}

// grows repeats an action in many rounds, each with a change of bank. In the second half, live objects must not grow by
// more than mostGrowth.
func (n *node) grows(rounds int, do func(round int)) {
	n.Helper()
	half := 0.0
	for round := range rounds {
		if round == rounds/2 {
			half = n.live()
		}
		do(round)
		n.bank()
	}
	n.atMost("MiB of growth", n.live()-half, mostGrowth)
}

// live returns the size of the program's live objects in MiB, when it has settled: the least of several collections of
// garbage, because the program still works meanwhile.
func (n *node) live() (least float64) {
	n.Helper()
	n.settle()
	for i := range 5 {
		status, _, err := n.Get(n.Context(), "http://127.0.0.1:10249/debug/pprof/heap?gc=1")
		if err != nil || status != http.StatusOK {
			n.Fatalf("garbage collection: status %d (%v)", status, err)
		}
		m, err := n.Metrics(n.Context())
		lab.Must(n.T, err)
		if bytes, _ := m.Sum("go_memstats_heap_alloc_bytes"); i == 0 || bytes/(1<<20) < least {
			least = bytes / (1 << 20)
		}
	}
	return least
}
