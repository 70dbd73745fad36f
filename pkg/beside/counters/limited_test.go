package counters

import (
	"net"
	"net/netip"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/outcome"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// The packet that finds an endpoint full is dropped. Later ones are refused, or dropped if the Service queues them.
// All of them are counted. After a connection has ended, its endpoint has a place.
func TestConnectionsAtTheMaximum(t *testing.T) {
	n := newNode(t)
	s := shape{endpoints: []*lab.Host{n.Pods[0]}, sources: allSources, most: 1, at: model.Refuse}
	n.set(s, apply.Full)
	var held []net.Conn
	for _, f := range inet.Families {
		for _, proto := range protocols {
			conn, err := n.Pods[1].Dial(t.Context(), proto, netip.AddrPortFrom(clusterIP[f], servicePort))
			lab.Must(t, err)
			defer conn.Close()
			if _, err := conn.Write([]byte("hello\n")); err != nil {
				t.Fatal(err)
			}
			held = append(held, conn)
			for _, name := range []string{f.String() + " " + proto.String() + " " + clusterIP[f].String(), "total"} {
				connected(n.wanted(name))
			}
		}
	}
	n.ask(n.Pods[1], clusterIP, servicePort, 1, lab.TimedOut, refused(outcome.AtMaximum))
	n.ask(n.Pods[1], clusterIP, servicePort, 2, lab.Refused, refused(outcome.AtMaximum))
	n.ask(n.Client, external, servicePort, 1, lab.Refused, refused(outcome.AtMaximum))
	n.ask(n.Client, n.Node.Addrs(), nodePort, 1, lab.Refused, refused(outcome.AtMaximum))
	n.check("at the maximum")
	_, keys := n.keys()
	list, err := n.fresh(keys)
	lab.Must(t, err)
	for i, k := range keys {
		got := list[i][outcome.AtMaximum]
		if want := uint64(2 * 5); k.Addr == clusterIP[k.Family] && got != want {
			t.Errorf("%v: %d connections of the service port are at the maximum, want %d", k, got, want)
		}
	}

	s.at = model.Queue
	n.set(s, apply.Partial)
	n.ask(n.Pods[1], clusterIP, servicePort, 2, lab.TimedOut, refused(outcome.AtMaximum))
	n.check("with a queue")

	for i, f := range inet.Families {
		_ = held[i*len(protocols)].Close()
		for tries := 0; ; tries++ {
			a := n.Pods[1].Probe(t.Context(), inet.TCP, netip.AddrPortFrom(clusterIP[f], servicePort), lab.Options{})
			if a.Outcome == lab.Answered {
				break
			}
			if tries == 100 {
				t.Fatalf("%s: the connection has ended, and another one is %s", f, a)
			}
		}
	}
}
