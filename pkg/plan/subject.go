package plan

import (
	"encoding/binary"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// Subject is the object of an element: a service port, or the source ranges of a Service.
type Subject struct {
	Number
	Sources bool
}

// SubjectOf returns the subject of an element. The data of an element with the name of its service port as a comment has
// the number, unless it is an endpoint. Other elements have the number in their key. The result is false if an element
// has none.
func SubjectOf(e *nft.Element) (Subject, bool) {
	word, sources := e.Data.AsUint32(), e.Set.Interval
	if e.Comment != "" && len(e.Set.Data) == 1 {
		sources = kindOf(word).restricts()
	} else if word = numberIn(e); isAffine(word) {
		word &= affineBits
	}
	number := word & portBits
	return Subject{Number{e.Set.Family, number}, sources}, number&topBit != 0 && number != topBit
}

// numberIn returns the word with a number in the key of an element, or 0.
func numberIn(e *nft.Element) uint32 {
	at := 0
	for _, f := range e.Set.Key {
		const word = 4
		if f.Name() == nft.Priority().Name() {
			value := e.Key.Cut(at, at+word)
			if e.Set.Interval {
				return binary.BigEndian.Uint32(value.Bytes())
			}
			return value.AsUint32()
		}
		at += word * f.Registers()
	}
	return 0
}
