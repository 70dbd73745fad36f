package nft

import (
	"encoding/binary"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// ChainInfo is what the kernel says of a chain.
type ChainInfo struct {
	Name string
	// Type, Hook and Priority are those of a base chain; Type is empty for others.
	Type     string
	Hook     uint32
	Priority int32
	// Drops says that the policy of a base chain is to drop.
	Drops bool
	// Uses counts the chain's rules, and the rules and elements that lead to it.
	Uses uint32
}

// nfDrop is NF_DROP, which golang.org/x/sys/unix lacks.
const nfDrop = 0

// SetInfo is what the kernel says of a set.
type SetInfo struct {
	Name string
	// Size is the number of elements that it was made for; 0 means no limit.
	Size uint32
	// Count is the number of elements in it, or -1 on kernels that don't tell (before 6.16).
	Count int
	shape setShape
}

// setShape are the properties that can't be changed on an existing set.
type setShape struct {
	flags, keyType, keyLen, dataType, dataLen uint32
	timeout                                   time.Duration
	userData                                  string
	// expr is the name of the expression that every element gets; "" for none.
	expr string
}

// Is reports whether the set in the kernel has the form of s, its size aside.
func (i *SetInfo) Is(s *Set) bool {
	want := setShape{
		flags: s.flags(), keyType: typeID(s.Key), keyLen: uint32(length(s.Key)), userData: string(s.userData()),
		timeout: s.Timeout,
	}
	if s.Counter {
		want.expr = counterName
	}
	if s.IsMap() {
		want.dataType, want.dataLen = s.dataType(), uint32(s.dataLen())
	}
	return i.shape == want
}

// attrs walks a list of attributes.
func attrs(b []byte, f func(typ uint16, value []byte)) {
	for len(b) >= 4 {
		n := int(binary.NativeEndian.Uint16(b))
		if n < 4 || n > len(b) {
			return
		}
		f(binary.NativeEndian.Uint16(b[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER), b[4:n])
		b = b[min((n+3)&^3, len(b)):]
	}
}

func text(b []byte) string {
	if n := len(b); n > 0 && b[n-1] == 0 {
		b = b[:n-1]
	}
	return string(b)
}

func be32(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

func be64(b []byte) uint64 {
	if len(b) < 8 {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}

func attribute(typ uint16, value []byte) []byte {
	var b encoder
	b.attr(typ, value)
	return b.buf
}

// Generation returns the number of the ruleset's present generation in this network namespace. Every commit of anybody adds
// one to it.
func (c *Conn) Generation() (uint32, error) {
	var id uint32
	var refused unix.Errno
	err := c.request(unix.NFT_MSG_GETGEN, 0, unix.NFPROTO_UNSPEC, nil)
	if err == nil {
		err = c.receive(func(h header, payload []byte) bool {
			switch {
			case h.typ == unix.NLMSG_ERROR:
				refused = errnoOf(payload)
			case h.typ == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN && len(payload) >= nfgenLen:
				var c Commit
				parseCommit(payload[nfgenLen:], &c)
				id = c.Generation
			}
			return true
		})
	}
	switch {
	case err != nil:
		return 0, fmt.Errorf("read ruleset generation: %w", err)
	case refused != 0:
		return 0, fmt.Errorf("read ruleset generation: %w", refused)
	case id == 0:
		return 0, fmt.Errorf("read ruleset generation: %w", errTruncated)
	}
	return id, nil
}

// TableInfo is what the kernel says of a table.
type TableInfo struct {
	Exists bool
	// Handle is its number, which no other table of this network namespace has had.
	Handle uint64
}

// Table finds a table.
func (c *Conn) Table(family Family, name string) (TableInfo, error) {
	var found TableInfo
	err := c.dump(unix.NFT_MSG_GETTABLE, family, nil, func() { found = TableInfo{} }, func(b []byte) error {
		if t, its := parseTable(b); its == name {
			found = t
		}
		return nil
	})
	return found, err
}

// tableHandle is NFTA_TABLE_HANDLE, which golang.org/x/sys/unix lacks.
const tableHandle = 4

func parseTable(b []byte) (t TableInfo, name string) {
	t.Exists = true
	attrs(b, func(typ uint16, v []byte) {
		switch typ {
		case unix.NFTA_TABLE_NAME:
			name = text(v)
		case tableHandle:
			t.Handle = be64(v)
		}
	})
	return t, name
}

// HasTable reports whether a table exists.
func (c *Conn) HasTable(family Family, name string) (bool, error) {
	t, err := c.Table(family, name)
	return t.Exists, err
}

// Chains lists the chains of a table.
func (c *Conn) Chains(family Family, table string) ([]ChainInfo, error) {
	var list []ChainInfo
	err := c.dump(unix.NFT_MSG_GETCHAIN, family, nil, func() { list = nil }, func(b []byte) error {
		if ch, in := parseChain(b); in == table {
			list = append(list, ch)
		}
		return nil
	})
	return list, err
}

func parseChain(b []byte) (ch ChainInfo, table string) {
	attrs(b, func(typ uint16, v []byte) {
		switch typ {
		case unix.NFTA_CHAIN_TABLE:
			table = text(v)
		case unix.NFTA_CHAIN_NAME:
			ch.Name = text(v)
		case unix.NFTA_CHAIN_TYPE:
			ch.Type = text(v)
		case unix.NFTA_CHAIN_POLICY:
			ch.Drops = be32(v) == nfDrop
		case unix.NFTA_CHAIN_USE:
			ch.Uses = be32(v)
		case unix.NFTA_CHAIN_HOOK:
			attrs(v, func(typ uint16, v []byte) {
				switch typ {
				case unix.NFTA_HOOK_HOOKNUM:
					ch.Hook = be32(v)
				case unix.NFTA_HOOK_PRIORITY:
					ch.Priority = int32(be32(v))
				}
			})
		}
	})
	return ch, table
}

// Sets lists the sets and maps of a table, anonymous ones aside.
func (c *Conn) Sets(family Family, table string) ([]SetInfo, error) {
	var list []SetInfo
	request := attribute(unix.NFTA_SET_TABLE, cstring(table))
	err := c.dump(unix.NFT_MSG_GETSET, family, request, func() { list = nil }, func(b []byte) error {
		if s, in := parseSet(b); in == table && s.shape.flags&unix.NFT_SET_ANONYMOUS == 0 {
			list = append(list, s)
		}
		return nil
	})
	return list, err
}

// setCount is NFTA_SET_COUNT (kernel 6.16), which golang.org/x/sys/unix lacks.
const setCount = 20

func parseSet(b []byte) (s SetInfo, table string) {
	s.Count = -1
	attrs(b, func(typ uint16, v []byte) {
		switch typ {
		case unix.NFTA_SET_TABLE:
			table = text(v)
		case unix.NFTA_SET_NAME:
			s.Name = text(v)
		case unix.NFTA_SET_FLAGS:
			s.shape.flags = be32(v)
		case unix.NFTA_SET_KEY_TYPE:
			s.shape.keyType = be32(v)
		case unix.NFTA_SET_KEY_LEN:
			s.shape.keyLen = be32(v)
		case unix.NFTA_SET_DATA_TYPE:
			s.shape.dataType = be32(v)
		case unix.NFTA_SET_DATA_LEN:
			s.shape.dataLen = be32(v)
		case unix.NFTA_SET_USERDATA:
			s.shape.userData = string(v)
		case unix.NFTA_SET_TIMEOUT:
			s.shape.timeout = time.Duration(be64(v)) * time.Millisecond
		case setExpr:
			s.shape.expr, _ = expression(v)
		case setCount:
			s.Count = int(be32(v))
		case unix.NFTA_SET_DESC:
			attrs(v, func(typ uint16, v []byte) {
				if typ == unix.NFTA_SET_DESC_SIZE {
					s.Size = be32(v)
				}
			})
		}
	})
	return s, table
}

// RuleComments lists the comments of the rules of each chain of a table, in the rules' order.
func (c *Conn) RuleComments(family Family, table string) (map[string][]string, error) {
	var byChain map[string][]string
	request := attribute(unix.NFTA_RULE_TABLE, cstring(table))
	begin := func() { byChain = map[string][]string{} }
	err := c.dump(unix.NFT_MSG_GETRULE, family, request, begin, func(b []byte) error {
		var in, chain, comment string
		attrs(b, func(typ uint16, v []byte) {
			switch typ {
			case unix.NFTA_RULE_TABLE:
				in = text(v)
			case unix.NFTA_RULE_CHAIN:
				chain = text(v)
			case unix.NFTA_RULE_USERDATA:
				comment = commentOf(v)
			}
		})
		if in == table {
			byChain[chain] = append(byChain[chain], comment)
		}
		return nil
	})
	return byChain, err
}

// commentOf finds the comment, type 0, in nft's userdata of a rule or an element.
func commentOf(udata []byte) string {
	for len(udata) >= 2 && len(udata) >= 2+int(udata[1]) {
		if udata[0] == 0 {
			return text(udata[2 : 2+int(udata[1])])
		}
		udata = udata[2+int(udata[1]):]
	}
	return ""
}

// Elements lists the elements of a set. The kernel's work grows with the square of their number: ask for small sets
// only, unless nobody waits. While the kernel resizes a set that was made without a size, an element may come twice.
func (c *Conn) Elements(s *Set) ([]Element, error) {
	var list []Element
	request := append(attribute(unix.NFTA_SET_ELEM_LIST_TABLE, cstring(s.Table)),
		attribute(unix.NFTA_SET_ELEM_LIST_SET, cstring(s.Name))...)
	err := c.dump(unix.NFT_MSG_GETSETELEM, s.Family, request, func() { list = nil }, func(b []byte) error {
		var failed error
		attrs(b, func(typ uint16, v []byte) {
			if typ != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
				return
			}
			attrs(v, func(_ uint16, v []byte) {
				e, err := parseElement(s, v)
				if err != nil {
					failed = err
				}
				list = append(list, e)
			})
		})
		return failed
	})
	if err != nil {
		return nil, fmt.Errorf("list elements of %s %s: %w", s.Family, s.Name, err)
	}
	return list, nil
}

func parseElement(s *Set, b []byte) (Element, error) {
	e := Element{Set: s}
	var failed error
	value := func(nested []byte) (v Value) {
		attrs(nested, func(typ uint16, b []byte) {
			switch {
			case typ != unix.NFTA_DATA_VALUE:
			case len(b) > maxValue:
				failed = fmt.Errorf("read element of %s: value of %d bytes", s.Name, len(b))
			default:
				v.n = byte(copy(v.b[:], b))
			}
		})
		return v
	}
	attrs(b, func(typ uint16, v []byte) {
		switch typ {
		case unix.NFTA_SET_ELEM_KEY:
			e.Key = value(v)
		case setElemKeyEnd:
			e.KeyEnd = value(v)
		case unix.NFTA_SET_ELEM_FLAGS:
			e.IntervalEnd = be32(v)&unix.NFT_SET_ELEM_INTERVAL_END != 0
		case unix.NFTA_SET_ELEM_DATA:
			e.Data = value(v)
			e.Chain, e.Jump = verdict(v)
		case unix.NFTA_SET_ELEM_USERDATA:
			e.Comment = commentOf(v)
		}
	})
	return e, failed
}

func verdict(data []byte) (chain string, jump bool) {
	attrs(data, func(typ uint16, v []byte) {
		if typ != unix.NFTA_DATA_VERDICT {
			return
		}
		attrs(v, func(typ uint16, v []byte) {
			switch typ {
			case unix.NFTA_VERDICT_CHAIN:
				chain = text(v)
			case unix.NFTA_VERDICT_CODE:
				jump = int32(be32(v)) == unix.NFT_JUMP
			}
		})
	})
	return chain, jump
}
