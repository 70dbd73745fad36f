package read

import (
	"testing"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/netlink"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// expressions returns the attributes of a rule's expressions.
func expressions(t testing.TB, list ...expr.Any) []byte {
	t.Helper()
	var b netlink.Encoder
	for _, e := range list {
		one, err := expr.Marshal(unix.NFPROTO_IPV4, e)
		lab.Must(t, err)
		b.Attr(unix.NFTA_LIST_ELEM, one)
	}
	return b.Buf
}

// status returns the expressions of a rule that accepts packets with a bit of ct status.
func status(bit byte) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATUS, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: []byte{bit, 0, 0, 0}, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
		&expr.Verdict{Kind: expr.VerdictAccept},
	}
}

// foreign returns a rule of another program.
func foreign(expressions []byte) ForeignRule {
	return foreignRule(inet.IPv4, nft.RuleInfo{Expressions: expressions})
}

// A rule of another program is described by its own jumps, and by its verdict about translated packets.
func TestExpressionsOfOtherPrograms(t *testing.T) {
	for _, c := range []struct {
		name    string
		list    []expr.Any
		accepts bool
		targets []string
		stops   string
	}{
		{"ct status dnat accept", status(statusDNAT), true, nil, ""},
		{"with a counter", append([]expr.Any{&expr.Counter{}}, status(statusDNAT)...), true, nil, ""},
		{"ct status 0x1 accept", status(1), false, nil, ""},
		{"another condition", append(status(statusDNAT)[:3], status(statusDNAT)...), false, nil, ""},
		{"without a verdict", status(statusDNAT)[:3], false, nil, ""},
		{"accept", status(statusDNAT)[3:], false, nil, ""},
		{"jump", []expr.Any{&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictJump, Chain: "KUBE-SERVICES"}}, false,
			[]string{"KUBE-SERVICES"}, ""},
		{"counter drop", []expr.Any{&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop}}, false, nil, "drop"},
		{"ct status dnat drop", append(status(statusDNAT)[:3], &expr.Verdict{Kind: expr.VerdictDrop}), false, nil, ""},
	} {
		r := foreign(expressions(t, c.list...))
		lab.Same(t, c.targets, r.Targets, "%s: targets", c.name)
		lab.Same(t, c.accepts, r.AcceptsDNAT(), "%s: accepts translated packets", c.name)
		lab.Same(t, c.stops, r.StopsAll(), "%s: stops all packets", c.name)
	}
}

// No rule and no trace event of the kernel causes a panic.
func FuzzExpressions(f *testing.F) {
	f.Add(expressions(f, status(statusDNAT)...))
	f.Add(expressions(f, &expr.Immediate{Register: 1, Data: []byte{10, 0, 0, 1}}, &expr.NAT{Type: expr.NATTypeDestNAT, RegAddrMin: 1}))
	f.Add(expressions(f, &expr.Lookup{SourceRegister: 1, SetName: "services"}, &expr.Verdict{Kind: expr.VerdictGoto, Chain: "c"}))
	f.Fuzz(func(t *testing.T, data []byte) {
		parseTrace(data)
		r := foreign(data)
		r.AcceptsDNAT()
		r.Text()
	})
}
