package hostile

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

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

// TestReportsOfDeletions deletes one element of 40,000 by hand. The repair deletes all of them. If a batch requests reports of its deletions, the
// kernel needs eight kilobytes for each. The kernel's memory during the repair must stay below a limit.
func TestReportsOfDeletions(t *testing.T) {
	const most = 150 // MiB; 40,000 reports would need 300
	n := newBank(t)
	var list []runtime.Object
	for i := range 40 {
		s := service(fmt.Sprintf("evil/wide-%d", i), fmt.Sprintf("10.96.7.%d", 1+i))
		s.Spec.Ports, s.Spec.ExternalIPs = ports(1, 50), texts(addresses(fmt.Sprintf("198.18.%d.1", i), 19, 1))
		list = append(list, s)
	}
	n.synced("evil", list...)
	var took []float64
	for range 5 { // the least, because other programs use the kernel's memory, too
		before, stop, peak := slab(t), make(chan struct{}), make(chan float64)
		go func() {
			for most := 0.0; ; most = max(most, slab(t)) {
				select {
				case <-stop:
					peak <- most
					return
				case <-time.After(time.Millisecond):
				}
			}
		}()
		n.nft("delete", "element", "ip", "kube-nftproxy", "services", "{ 10.96.0.10 . tcp . 8443 }")
		n.until(10*patience, "the repair", n.bankServed)
		close(stop)
		took = append(took, <-peak-before)
	}
	n.atMost("MiB of the kernel's memory", slices.Min(took), most)
}

// slab returns the size of the kernel's unreclaimable objects in MiB.
func slab(t *testing.T) float64 {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Error(err)
	}
	_, after, _ := strings.Cut(string(text), "SUnreclaim:")
	kib, err := strconv.ParseFloat(strings.Fields(after)[0], 64)
	if err != nil {
		t.Error(err)
	}
	return kib / 1024
}
