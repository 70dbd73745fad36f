package apply

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/dchest/siphash"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// state describes a family's table for a later process. It is the comment of the only element of the set
// [plan.StateSet].
type state struct {
	// layout is a fingerprint of sets, chains and rules.
	layout uint64
	digest
	// next is [plan.Totals.Next].
	next uint32
}

// stateComment is the format of the comment of the element. It contains the key: no log, page or command may show it.
const stateComment = "layout %016x key %016x%016x next %x digest %016x"

// readState reads the state from its element.
func readState(e *nft.Element) (s state, err error) {
	if _, err := fmt.Sscanf(e.Comment, stateComment, &s.layout, &s.key[0], &s.key[1], &s.next, &s.sum); err != nil {
		return s, fmt.Errorf("read state: %w", err)
	}
	return s, nil
}

// differingParts names the parts in which two states differ, without their values. It returns "" if they are equal.
func (s state) differingParts(other state) string {
	var parts []string
	if s.layout != other.layout {
		parts = append(parts, "sets, chains or rules")
	}
	if s.digest != other.digest {
		parts = append(parts, "elements")
	}
	if s.next != other.next {
		parts = append(parts, "the next number")
	}
	return strings.Join(parts, ", ")
}

// digest is the sum of the hashes of elements, so their order does not matter. It includes only elements of sets that
// are [plan.Planned].
type digest struct {
	key digestKey
	sum uint64
}

// digestKey is the key of the hashes. It is random, so that a tenant cannot create objects whose elements have the same
// digest as other elements.
type digestKey [2]uint64

func newDigestKey() (k digestKey) {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails, see crypto/rand
	return digestKey{binary.LittleEndian.Uint64(b[:8]), binary.LittleEndian.Uint64(b[8:])}
}

// hash returns a keyed hash (SipHash) of the element's set name and all its fields, or 0 for an element of a set that
// is not compared.
func (k digestKey) hash(e *nft.Element) uint64 {
	if !plan.Planned(e.Set) {
		return 0
	}
	var room [256]byte
	b := append(room[:0], e.Set.Name...)
	b = append(b, 0, byte(len(e.Key.Bytes())))
	b = append(b, e.Key.Bytes()...)
	b = append(b, byte(len(e.KeyEnd.Bytes())))
	b = append(b, e.KeyEnd.Bytes()...)
	if e.IntervalEnd || e.Jump {
		b = append(b, 1)
	}
	b = append(b, byte(len(e.Data.Bytes())))
	b = append(b, e.Data.Bytes()...)
	b = append(b, e.Chain...)
	b = append(b, 0)
	b = append(b, nft.CutComment(e.Comment)...) // the kernel has only this part
	if e.MaxConnections > 0 {
		b = append(b, 0, byte(e.MaxConnections>>8), byte(e.MaxConnections))
	}
	return siphash.Hash(k[0], k[1], b)
}

// state returns the state of a family's table, as an element.
func (l *ledger) state(f inet.Family) *nft.Element {
	if l.layouts == nil {
		l.layouts = map[inet.Family]uint64{}
		for _, t := range l.planner.Rules().Samples() {
			l.layouts[t.Family] = nft.Fingerprint(t)
		}
	}
	d := l.digests[f]
	comment := fmt.Sprintf(stateComment, l.layouts[f], d.key[0], d.key[1], l.planner.Totals().Next[f], d.sum)
	return &nft.Element{Set: l.stateSets[f], Key: nft.Value{}.Uint32(1), Comment: comment}
}
