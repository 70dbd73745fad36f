package read

import (
	"testing"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/netlink"
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

// A rule of another program is described by its own jumps, and by its verdict about translated packets.
func TestExpressionsOfOtherPrograms(t *testing.T) {
	if !acceptsDNAT(expressions(t, status(statusDNAT)...)) || acceptsDNAT(expressions(t, status(1)...)) {
		t.Error("ct status dnat accept is not recognised, or another status is")
	}
	var r ForeignRule
	for _, e := range netlink.Attributes(expressions(t, &expr.Counter{}, &expr.Verdict{Kind: expr.VerdictJump, Chain: "KUBE-SERVICES"})) {
		r.expression(e)
	}
	lab.Same(t, []string{"KUBE-SERVICES"}, r.Targets, "targets of a jump")
}

// No rule and no trace event of the kernel causes a panic.
func FuzzExpressions(f *testing.F) {
	f.Add(expressions(f, status(statusDNAT)...))
	f.Add(expressions(f, &expr.Immediate{Register: 1, Data: []byte{10, 0, 0, 1}}, &expr.NAT{Type: expr.NATTypeDestNAT, RegAddrMin: 1}))
	f.Add(expressions(f, &expr.Lookup{SourceRegister: 1, SetName: "services"}, &expr.Verdict{Kind: expr.VerdictGoto, Chain: "c"}))
	f.Fuzz(func(t *testing.T, data []byte) {
		acceptsDNAT(data)
		parseTrace(data)
		var r ForeignRule
		var list []Expr
		for _, e := range netlink.Attributes(data) {
			r.expression(e)
			list = append(list, decode(inet.IPv4, e))
		}
		Text(inet.IPv4, list, nil)
	})
}
