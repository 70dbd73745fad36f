package nft

import (
	"testing"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// A rule that has counted packets equals the rule that was sent.
func TestCountedPacketsAreNoDifference(t *testing.T) {
	counted, err := expr.Marshal(unix.NFPROTO_IPV4, &expr.Counter{Packets: 3, Bytes: 180})
	lab.Must(t, err)
	for name, c := range map[string]struct {
		want expr.Any
		same bool
	}{
		"the counter":   {&expr.Counter{}, true},
		"another thing": {&expr.Masq{}, false},
	} {
		list := attribute(unix.NFTA_LIST_ELEM, counted)
		if same, err := sameExpressions(inet.IPv4, []expr.Any{c.want}, list); same != c.same || err != nil {
			t.Errorf("%s: sameExpressions() = %v, %v; want %v", name, same, err, c.same)
		}
	}
}
