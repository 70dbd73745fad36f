//go:build twin

package conntrack

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// If the table is full of other connections, the kernel drops packets of new connections. A pass still finds and
// deletes stale flows to a removed endpoint. The deletions free space, so the clients of these flows can connect.
// Other new clients can connect after the other connections are deleted.
func TestFullTableTwin(t *testing.T) {
	const f = inet.IPv4
	n := newNode(t)
	a, clients := n.served(f)
	b := n.pod(f, 11)
	room := n.number("nf_conntrack_max") - n.number("nf_conntrack_count")
	insert(t, n.table, unrelated(inet.TCP, room))
	if gone := n.number("nf_conntrack_max") - n.number("nf_conntrack_count"); gone > 0 {
		insert(t, n.table, unrelated(inet.UDP, gone)) // other entries have expired meanwhile
	}
	late := n.clients(f)
	n.expect(late, noAnswer)
	n.expect(clients, a.String())
	d := n.serve(f, inet.UDP, b)
	n.pass(f, d, len(clients))
	n.expect(clients, b.String())
	n.expect(late, noAnswer)
	others := func(flow *Flow) bool { return flow.Protocol == inet.TCP }
	if out, err := n.table.Delete(t.Context(), f, All, others); err != nil || out.Deleted != room {
		t.Fatalf("got %+v, %v; want %d deleted", out, err, room)
	}
	n.expect(late, b.String())
}

func (n *node) number(sysctl string) int {
	n.Helper()
	text, err := os.ReadFile("/proc/sys/net/netfilter/" + sysctl)
	lab.Must(n, err)
	number, err := strconv.Atoi(strings.TrimSpace(string(text)))
	lab.Must(n, err)
	return number
}
