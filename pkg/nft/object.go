package nft

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/netlink"
)

// Timeouts are conntrack's timeouts of UDP flows or TCP connections. They are an object of the kernel (ct timeout). A
// chain has its own one, with the name of the chain, see [Chain.Timeouts].
type Timeouts struct {
	// Protocol is UDP or TCP.
	Protocol inet.Protocol
	// Unreplied is the timeout of a UDP flow in its first two seconds, and without a reply. Replied is that of any
	// other UDP flow.
	Unreplied, Replied time.Duration
	// Established is the timeout of an established TCP connection.
	Established time.Duration
}

// ObjectInfo describes an object in the kernel.
type ObjectInfo struct {
	Name string
	// kind is the kernel's number of the type.
	kind uint32
	Timeouts
}

// SetTimeouts: ct timeout set "NAME"
func SetTimeouts(name string) *expr.Objref {
	return &expr.Objref{Type: unix.NFT_OBJECT_CT_TIMEOUT, Name: name + "\x00"}
}

// TimeoutsText returns an expression of [SetTimeouts] in nft's language; "" for a reference to another object.
func TimeoutsText(e *expr.Objref) string {
	if e.Type != unix.NFT_OBJECT_CT_TIMEOUT {
		return ""
	}
	return fmt.Sprintf("ct timeout set %q", strings.TrimRight(e.Name, "\x00"))
}

// Lines returns the lines with which nft declares the object in a table of a family; nil for the zero value.
func (t Timeouts) Lines(f inet.Family) []string {
	if t == (Timeouts{}) {
		return nil
	}
	policy := fmt.Sprintf("unreplied : %.0f, replied : %.0f", t.Unreplied.Seconds(), t.Replied.Seconds())
	if t.Protocol == inet.TCP {
		policy = fmt.Sprintf("established : %.0f", t.Established.Seconds())
	}
	return []string{"protocol " + t.Protocol.String(), "l3proto " + f.Keyword(), "policy = { " + policy + " }"}
}

// Attributes of ct timeout objects, which golang.org/x/sys/unix lacks: NFTA_CT_TIMEOUT_L4PROTO, NFTA_CT_TIMEOUT_DATA,
// CTA_TIMEOUT_UDP_UNREPLIED, CTA_TIMEOUT_UDP_REPLIED and CTA_TIMEOUT_TCP_ESTABLISHED.
const (
	timeoutL4Proto = 2
	timeoutPolicy  = 3
	udpUnreplied   = 1
	udpReplied     = 2
	tcpEstablished = 3
)

// policy returns the timeouts by their attributes. The kernel takes all other timeouts from its sysctls when it adds
// the object.
func (t *Timeouts) policy() map[uint16]*time.Duration {
	if t.Protocol == inet.TCP {
		return map[uint16]*time.Duration{tcpEstablished: &t.Established}
	}
	return map[uint16]*time.Duration{udpUnreplied: &t.Unreplied, udpReplied: &t.Replied}
}

// AddTimeouts creates an object. It changes nothing if the object exists.
func (b *Batch) AddTimeouts(t *Table, name string, o Timeouts) {
	b.object(unix.NFT_MSG_NEWOBJ, unix.NLM_F_CREATE, t, &ObjectInfo{Name: name, kind: unix.NFT_OBJECT_CT_TIMEOUT})
	data := b.Nest(unix.NFTA_OBJ_DATA)
	b.Attr(timeoutL4Proto, []byte{uint8(o.Protocol)})
	policy := b.Nest(timeoutPolicy)
	of := o.policy()
	for typ := range uint16(tcpEstablished + 1) {
		if d := of[typ]; d != nil {
			b.Uint32(typ, uint32(*d/time.Second))
		}
	}
	b.Unnest(policy)
	b.Unnest(data)
}

// DeleteTimeouts deletes an object of [Batch.AddTimeouts]. The object must exist, and no rule may use it. Connections
// with these timeouts then have those of the node.
func (b *Batch) DeleteTimeouts(t *Table, name string) {
	b.DeleteObject(t, &ObjectInfo{Name: name, kind: unix.NFT_OBJECT_CT_TIMEOUT})
}

// DeleteObject deletes an object of any type, as DeleteTimeouts does.
func (b *Batch) DeleteObject(t *Table, o *ObjectInfo) { b.object(unix.NFT_MSG_DELOBJ, 0, t, o) }

func (b *Batch) object(msg, flags uint16, t *Table, o *ObjectInfo) {
	b.message(msg, flags, t.Family)
	b.Text(unix.NFTA_OBJ_TABLE, t.Name)
	b.Text(unix.NFTA_OBJ_NAME, o.Name)
	b.Uint32(unix.NFTA_OBJ_TYPE, o.kind)
}

// Objects returns the objects of a table.
func (c *Conn) Objects(family inet.Family, table string) ([]ObjectInfo, error) {
	var request encoder
	request.Text(unix.NFTA_OBJ_TABLE, table)
	return dump(c, unix.NFT_MSG_GETOBJ, family.Number(), request.Buf, func(b []byte, add func(ObjectInfo)) error {
		if o, in := parseObject(b); in == table {
			add(o)
		}
		return nil
	})
}

func parseObject(b []byte) (o ObjectInfo, table string) {
	var data []byte
	for typ, v := range netlink.Attributes(b) {
		switch typ {
		case unix.NFTA_OBJ_TABLE:
			table = netlink.Text(v)
		case unix.NFTA_OBJ_NAME:
			o.Name = netlink.Text(v)
		case unix.NFTA_OBJ_TYPE:
			o.kind = netlink.Uint32(v)
		case unix.NFTA_OBJ_DATA:
			data = v
		}
	}
	if proto := netlink.Find(data, timeoutL4Proto); o.kind == unix.NFT_OBJECT_CT_TIMEOUT && len(proto) == 1 {
		o.Protocol = inet.Protocol(proto[0])
		policy := netlink.Find(data, timeoutPolicy)
		for typ, d := range o.policy() {
			*d = time.Duration(netlink.Uint32(netlink.Find(policy, typ))) * time.Second
		}
	}
	return o, table
}

// object returns the object with a name, or the zero object.
func (k *KernelTable) object(name string) ObjectInfo {
	if i := slices.IndexFunc(k.Objects, func(o ObjectInfo) bool { return o.Name == name }); i >= 0 {
		return k.Objects[i]
	}
	return ObjectInfo{}
}
