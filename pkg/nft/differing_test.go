package nft

import (
	"testing"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// A rule that has counted packets equals the rule that was sent.
func TestCountedPacketsAreNoDifference(t *testing.T) {
	counted, err := expr.Marshal(unix.NFPROTO_IPV4, &expr.Counter{Packets: 3, Bytes: 180})
	if err != nil {
		t.Fatal(err)
	}
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

// nft 1.0 converts the byte order of the protocol in keys with intervals. That changes nothing.
func TestByteOrderOfOneByteIsNoDifference(t *testing.T) {
	for length, same := range map[uint32]bool{1: true, 2: false} {
		load, err := expr.Marshal(unix.NFPROTO_IPV4, &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 9})
		if err != nil {
			t.Fatal(err)
		}
		convert, err := expr.Marshal(unix.NFPROTO_IPV4, &expr.Byteorder{SourceRegister: 9, DestRegister: 9, Op: expr.ByteorderHton, Len: length, Size: 2})
		if err != nil {
			t.Fatal(err)
		}
		list := append(attribute(unix.NFTA_LIST_ELEM, load), attribute(unix.NFTA_LIST_ELEM, convert)...)
		want := []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 9}}
		if got, err := sameExpressions(inet.IPv4, want, list); got != same || err != nil {
			t.Errorf("%d bytes: sameExpressions() = %v, %v; want %v", length, got, err, same)
		}
	}
}
