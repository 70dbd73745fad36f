package conntrack

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/netlink"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// For any message of the kernel, the deletion identifies exactly the entry of this message. It always has a tuple: a
// deletion without a tuple would delete the whole table.
func FuzzEntry(f *testing.F) {
	zone := flow(inet.UDP, "[fd00::1]:53", "[fd00::2]:5353")
	zone.Zone, zone.ID, zone.Replied, zone.DNAT = 9, 1<<31, true, true
	for _, seed := range []Flow{flow(inet.UDP, "10.96.0.1:53", "10.244.0.1:5353"), zone} {
		whole := append([]byte{unix.NFPROTO_IPV4, 0, 0, 0}, attributes(seed)...)
		f.Add(whole)
		f.Add(whole[:len(whole)-4])
		f.Add(append(bytes.Clone(whole), attributes(seed)...))
		empty := netlink.Encoder{Buf: bytes.Clone(whole)}
		empty.Nest(attrTupleOrig)
		f.Add(empty.Buf)
	}
	var zoned netlink.Encoder
	appendTuple(&zoned, attrTupleOrig, inet.UDP, zone.Source, zone.Destination)
	zoned.Attr(tupleZone, []byte{0, 7})
	zoned.Unnest(0)
	f.Add(append(append([]byte{unix.NFPROTO_IPV4, 0, 0, 0}, attributes(zone)...), zoned.Buf...))
	f.Fuzz(func(t *testing.T, data []byte) {
		var want, got Flow
		e, ok := parse(netlink.Message{Payload: data}.Object(), &want)
		if !ok {
			return
		}
		var b batch
		b.add(e)
		b.add(e)
		if len(e.zone) > 0 && !bytes.Contains(b.Buf, e.zone) {
			t.Errorf("the deletion lacks the zone %x", e.zone)
		}
		found := 0
		for m := range netlink.Messages(b.Buf) {
			found++
			if m.Type != msgDelete {
				t.Fatalf("message type %d", m.Type)
			}
			if deleted := named(m.Object(), &got); !deleted {
				t.Fatalf("%+v: the deletion identifies no entry: %x", want, m.Payload)
			}
			// A deletion has neither these fields nor the zone of the reply direction.
			same := cmp.Options{cmpopts.EquateComparable(netip.AddrPort{}), cmpopts.IgnoreFields(Flow{}, "Server", "Client",
				"Replied", "DNAT", "Zone")}
			if diff := cmp.Diff(want, got, same); diff != "" {
				t.Errorf("flow (-read +deleted):\n%s", diff)
			}
		}
		lab.Same(t, 2, found, "messages for two deletions")
	})
}

// named parses a deletion, and reports whether it identifies an entry by the tuple of the original direction and the
// id.
func named(attributes []byte, f *Flow) bool {
	e, _ := parse(attributes, f)
	return len(e.tuple) > 0 && len(e.id) > 0 && f.Destination.IsValid()
}
