package loopback

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// Table returns the name of the tables that refuse and count packets to UDP and SCTP node ports on loopback. services
// is the name of the tables of Services. The rules have tables of their own, so that a node without node ports on
// loopback does not have them.
func Table(services string) string { return services + "-loopback" }

// Refused are the protocols whose node ports are refused.
var Refused = [...]inet.Protocol{inet.UDP, inet.SCTP}

// Refusals are the UDP and SCTP node ports that the kernel refuses on loopback. Only one goroutine may call the
// methods, except Packets.
type Refusals struct {
	table  string
	tables [2]*refusals
	wanted map[model.Key]struct{}
	// changed are the node ports that have changed since the last commit: whether each is wanted. all is true if the
	// next commit must rewrite the tables.
	changed map[model.Key]bool
	all     bool

	// mu is held while conn is used.
	mu   sync.Mutex
	conn *nft.Conn
}

// refusals is the table of one family, with its sets.
type refusals struct {
	*nft.Table
	ports, packets *nft.Set
}

// NewRefusals returns refusals for the given families. services is the name of the tables of Services. The tables are
// in the network namespace of the thread that first calls [Refusals.Commit]. This call also deletes the table that an
// earlier process has left for another family.
func NewRefusals(families []inet.Family, services string) *Refusals {
	r := &Refusals{table: Table(services), wanted: map[model.Key]struct{}{}, changed: map[model.Key]bool{}, all: true}
	for _, f := range families {
		r.tables[f] = newTable(f, r.table)
	}
	return r
}

// newTable: chain output { type nat hook output priority dstnat; ct state new ip daddr 127.0.0.0/8 meta l4proto . th
// dport @ports meta l4proto @packets reject }. The kernel evaluates a chain of type nat only for the first packet of
// a connection, so established connections have no overhead. A refused packet does not create a connection, so the
// rule counts each of them. The kernel evaluates such chains only while a rule needs connection tracking: hence "ct
// state new".
func newTable(f inet.Family, name string) *refusals {
	const reg, dstnat = unix.NFT_REG32_00, -100
	ports := &nft.Set{Family: f, Table: name, Name: "ports", Key: []nft.Field{nft.L4Proto(), nft.DstPort()},
		Comment: "node ports"}
	packets := &nft.Set{Family: f, Table: name, Name: "packets", Key: []nft.Field{nft.L4Proto()}, Counter: true,
		Comment: "packets by protocol"}
	rule := nft.Rule{Comment: "node ports on loopback are served for TCP only", Exprs: []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: reg},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: word(expr.CtStateBitNEW), Xor: word(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: word(0)},
		nft.DstAddr(f).Load(reg),
	}}
	loopback := &expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: inet.Loopback[f].Addr().AsSlice()}
	unreachable := uint8(3)
	if f == inet.IPv4 {
		rule.Exprs = append(rule.Exprs,
			&expr.Bitwise{
				SourceRegister: reg, DestRegister: reg, Len: 4, Mask: []byte{0xff, 0, 0, 0}, Xor: make([]byte, 4),
			}, loopback)
	} else {
		unreachable = 4
		rule.Exprs = append(rule.Exprs, loopback)
	}
	rule.Exprs = append(rule.Exprs,
		nft.L4Proto().Load(reg), nft.DstPort().Load(reg+1), &expr.Lookup{SourceRegister: reg, SetName: ports.Name},
		nft.L4Proto().Load(reg), &expr.Lookup{SourceRegister: reg, SetName: packets.Name},
		&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: unreachable})
	return &refusals{
		Table: &nft.Table{
			Family: f, Name: name, Comment: "Kubernetes node ports on loopback", Sets: []*nft.Set{ports, packets},
			Chains: []*nft.Chain{{
				Name: "output", Type: "nat", Hook: unix.NF_INET_LOCAL_OUT, Priority: dstnat,
				Comment: "packets of this node", Rules: []nft.Rule{rule},
			}},
		},
		ports: ports, packets: packets,
	}
}

func word(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// Set sets whether a node port is refused. The next commit applies it.
func (r *Refusals) Set(k model.Key, refused bool) {
	if _, was := r.wanted[k]; was == refused {
		return
	}
	r.changed[k] = refused
	if delete(r.wanted, k); refused {
		r.wanted[k] = struct{}{}
	}
}

// Reset makes the next commit rewrite the tables.
func (r *Refusals) Reset() { r.all = true }

// Commit applies all changes since the last commit. After an error, the next commit rewrites the tables.
func (r *Refusals) Commit() (err error) {
	if !r.all && len(r.changed) == 0 {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.open(); err != nil {
		return err
	}
	if !r.all && r.commit(r.change) == nil {
		return nil
	}
	r.all = true // another program has changed the tables, or deleted them
	if err := r.commit(r.rewrite); err != nil {
		return fmt.Errorf("refuse node ports on loopback: %w", err)
	}
	r.all = false
	return nil
}

func (r *Refusals) open() (err error) {
	if r.conn == nil {
		r.conn, err = nft.Open()
	}
	return err
}

func (r *Refusals) commit(write func(*nft.Batch) error) error {
	b := nft.NewBatch(0)
	if err := write(b); err != nil {
		return err
	}
	if !b.Empty() {
		if err := r.conn.Commit(b); err != nil {
			return err
		}
	}
	clear(r.changed)
	return nil
}

// change writes the differences. If a node port was added and removed since the last commit, the kernel has no
// element for it. If it was removed and added, the kernel still has its element. So change makes sure that each
// element exists before it deletes any.
func (r *Refusals) change(b *nft.Batch) error {
	for k := range r.changed {
		b.EnsureElement(r.element(k))
	}
	for k, wanted := range r.changed {
		if !wanted {
			b.DeleteElement(r.element(k))
		}
	}
	return nil
}

// rewrite replaces the tables, and deletes the tables of families that are not served.
func (r *Refusals) rewrite(b *nft.Batch) error {
	for _, f := range inet.Families {
		t := r.tables[f]
		if found, err := r.conn.HasTable(f, r.table); err != nil {
			return err
		} else if found {
			b.DeleteTable(f, r.table)
		}
		if t == nil {
			continue
		}
		b.AddTable(t.Table)
		for _, s := range t.Sets {
			b.AddSet(s)
		}
		for _, c := range t.Chains {
			b.AddChain(t.Table, c)
			b.AddRules(t.Table, c)
		}
		for _, p := range Refused {
			b.AddElement(&nft.Element{Set: t.packets, Key: nft.Value{}.OnlyProto(p)})
		}
	}
	for k := range r.wanted {
		b.AddElement(r.element(k))
	}
	return nil
}

func (r *Refusals) element(k model.Key) *nft.Element {
	return &nft.Element{Set: r.tables[k.Family].ports, Key: nft.Value{}.Proto(k.Protocol).Port(k.Port)}
}

// Close closes the connection. If owner is true, it first deletes the tables; otherwise they belong to another process.
func (r *Refusals) Close(owner bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.conn == nil {
		return nil
	}
	var errs []error
	for _, f := range inet.Families {
		if owner && r.tables[f] != nil {
			_, err := r.conn.DeleteTable(f, r.table)
			errs = append(errs, err)
		}
	}
	errs = append(errs, r.conn.Close())
	r.conn = nil
	return errors.Join(errs...)
}

// Packets returns the number of refused packets of a family by protocol, since the last rewrite of the tables. It
// waits for the kernel. Any goroutine may call it.
func (r *Refusals) Packets(f inet.Family) (map[inet.Protocol]uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.conn == nil || r.tables[f] == nil {
		return nil, nil
	}
	n := map[inet.Protocol]uint64{}
	_, err := r.conn.Each(r.tables[f].packets, func(e *nft.Found) bool {
		n[inet.Protocol(e.Key.Bytes()[0])] = e.Packets
		return true
	})
	return n, err
}

// Cleanup deletes the tables that a process has left. services is the name of the tables of Services. It returns the
// names of the deleted tables.
func Cleanup(services string) (deleted []string, err error) {
	return nft.DeleteTables(Table(services))
}
