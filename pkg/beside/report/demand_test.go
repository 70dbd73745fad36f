package report

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/room"
)

// Demand is reported without the delay of problems. All nodes together write one Event. A namespace with too much
// demand does not delay others.
func TestDemandIsReportedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		demandPerNamespace := room.New(demandPerNode).Most()
		s := newServer()
		nodes, suppressed := s.nodes(t, 20)
		pass(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute)))
		web := types.NamespacedName{Namespace: "shop", Name: "web"}
		for _, n := range nodes {
			n.Wanted(web)
		}
		synctest.Wait()
		if s.number() != 1 || s.written() != 2 {
			t.Errorf("%d Events with %d writes at once, want 1 with 2", s.number(), s.written())
		}
		for i := range 10 * demandPerNamespace {
			nodes[0].Wanted(types.NamespacedName{Namespace: "flood", Name: fmt.Sprint("web-", i)})
		}
		nodes[0].Wanted(types.NamespacedName{Namespace: "other", Name: "api"})
		synctest.Wait()
		if got, want := s.number(), 1+demandPerNamespace+1; got != want || suppressed.Load() != 0 {
			t.Errorf("%d Events after a flood, want %d; %d were dropped", got, want, suppressed.Load())
		}
		pass(window + time.Second)
		nodes[0].Wanted(types.NamespacedName{Namespace: "flood", Name: "late"})
		synctest.Wait()
		if got, want := s.number(), 1+demandPerNamespace+2; got != want {
			t.Errorf("%d Events after %s, want %d", got, window, want)
		}
	})
}
