package nft

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// Set returns a Set that suffices to read and print the elements, also for a set of another program.
func (i *SetInfo) Set(family inet.Family, table string) *Set {
	s := &Set{
		Family: family, Table: table, Name: i.Name, Key: fieldsOf(i.shape.keyType, i.shape.keyLen), Size: i.Size,
		Timeout:  i.shape.timeout,
		Interval: i.shape.flags&unix.NFT_SET_INTERVAL != 0, Dynamic: i.shape.flags&unix.NFT_SET_EVAL != 0,
		Timeouts: i.shape.flags&unix.NFT_SET_TIMEOUT != 0 && i.shape.timeout == 0,
		Counter:  strings.HasSuffix(i.shape.expr, counterName),
	}
	if i.shape.flags&unix.NFT_SET_MAP != 0 {
		if s.Verdict = i.shape.dataType == verdictType; !s.Verdict {
			s.Data = fieldsOf(i.shape.dataType, i.shape.dataLen)
		}
	}
	return s
}

// verdictType is NFT_DATA_VERDICT, the data type of verdict maps.
const verdictType = 0xffffff00

// fieldsOf returns the fields for a type number, six bits for each. An unknown type becomes one unnamed field.
func fieldsOf(typ, length uint32) []Field {
	var fields []Field
	n := 0
	for shift := 30; shift >= 0; shift -= 6 {
		part := typ >> shift & 0x3f
		if part == 0 && len(fields) == 0 {
			continue
		}
		f, ok := fieldOf(part)
		if !ok {
			return []Field{opaque(int(length))}
		}
		fields = append(fields, f)
		n += f.slot()
	}
	if first := int(length) - n + 4; len(fields) > 1 && fields[0].typ == Index().typ && first > 4 {
		// An integer has any length. In direct-quoted, the first one is an address.
		fields[0], n = Transport(0, uint32(first)), int(length)
	}
	if len(fields) == 0 || n != int(length) && fields[0].len != int(length) {
		return []Field{opaque(int(length))}
	}
	return fields
}

func fieldOf(typ uint32) (Field, bool) {
	known := []Field{DstAddr(inet.IPv4), DstAddr(inet.IPv6), L4Proto(), DstPort(), Priority(), Mark(), Index()}
	for _, f := range known {
		if f.typ == typ {
			return f, true
		}
	}
	return Field{}, false
}

func opaque(length int) Field {
	return Field{name: "?", len: length, print: func(b []byte) string { return fmt.Sprintf("0x%x", b) }}
}
