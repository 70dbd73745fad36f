package nodeport

import (
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestFindReturnsReportedCollisions: Find also returns collisions that Run has reported, and reports nothing itself.
func TestFindReturnsReportedCollisions(t *testing.T) {
	run(t, func(t *testing.T, n *fakeNode, w *Watcher) {
		if list, err := w.Find(); len(list) > 0 || err != nil {
			t.Errorf("without node ports: %v, %v", list, err)
		}
		n.listen(socket(inet.TCP, "0.0.0.0:30080"))
		n.mu.Lock()
		n.ephemeral.Range.First = 30000
		n.mu.Unlock()
		w.set(web, append(dual(inet.TCP, 30080), dual(inet.TCP, 30081)...))
		time.Sleep(time.Hour)
		n.mu.Lock()
		n.problems = nil
		n.mu.Unlock()
		for range 2 {
			list, err := w.Find()
			lab.Must(t, err)
			var got []string
			for _, p := range list {
				got = append(got, p.Event+" "+p.Kind+" "+p.Name.Name)
			}
			lab.Same(t, []string{"NodePortCollision Service web", "NodePortInEphemeralRange Node node-1"}, got, "")
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		if len(n.problems) > 0 {
			t.Errorf("Find reported problems: %q", n.problems)
		}
	})
}
