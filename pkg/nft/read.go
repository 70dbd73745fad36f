package nft

import (
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/netlink"
)

// ChainInfo describes a chain in the kernel.
type ChainInfo struct {
	Name string
	// Type, Hook and Priority are those of a base chain. Type is empty for other chains.
	Type     string
	Hook     uint32
	Priority int32
	// Drops is true if the policy of a base chain is drop.
	Drops bool
	// Uses is the number of rules in the chain, plus the number of rules and elements that lead to the chain.
	Uses uint32
}

// nfDrop is NF_DROP, which golang.org/x/sys/unix lacks.
const nfDrop = 0

// SetInfo describes a set in the kernel.
type SetInfo struct {
	Name string
	// Size is the declared size; 0 means no limit.
	Size uint32
	// Count is the current number of elements, or -1 if the kernel does not report it (before 6.16).
	Count int
	shape setShape
}

// setShape holds the properties of a set that are constant while the set exists.
type setShape struct {
	flags, keyType, keyLen, dataType, dataLen uint32
	timeout                                   time.Duration
	userData                                  string
	// expr are the names of the expressions that each element gets, separated by a space, or "".
	expr string
}

// Is reports whether the set in the kernel has the same form as s, except its size.
func (i *SetInfo) Is(s *Set) bool {
	want := setShape{
		flags: s.flags(), keyType: typeID(s.Key), keyLen: uint32(length(s.Key)), userData: string(s.userData()),
		timeout: s.Timeout,
	}
	switch {
	case s.Counter && s.MaxConnections > 0:
		want.expr = connlimitName + " " + counterName
	case s.Counter:
		want.expr = counterName
	case s.MaxConnections > 0:
		want.expr = connlimitName
	}
	if s.IsMap() {
		want.dataType, want.dataLen = s.dataType(), uint32(s.dataLen())
	}
	return i.shape == want
}

func attribute(typ uint16, value []byte) []byte {
	var b encoder
	b.attr(typ, value)
	return b.buf
}

// ErrChanged means that the result of several readings may be wrong, because [Conn.Generation] changed meanwhile.
var ErrChanged = errors.New("the ruleset changed during the reading")

// Generation returns the generation number of the ruleset in this network namespace. Every commit of any program increments it.
func (c *Conn) Generation() (uint32, error) {
	m, err := c.socket.AskOne(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN, unix.NFPROTO_UNSPEC, nil)
	var now Commit
	parseCommit(m.Object(), &now)
	if err == nil && now.Generation == 0 {
		err = netlink.ErrTruncated
	}
	if err != nil {
		return 0, fmt.Errorf("read ruleset generation: %w", err)
	}
	return now.Generation, nil
}

// TableInfo describes a table in the kernel.
type TableInfo struct {
	Exists bool
	// Dormant is true if the kernel ignores the table's chains.
	Dormant bool
	// Handle is the table's number. The kernel does not reuse it in this network namespace.
	Handle uint64
}

// Table describes the table with a name. Exists is false if there is none.
func (c *Conn) Table(family inet.Family, name string) (TableInfo, error) {
	var found TableInfo
	err := c.dump(unix.NFT_MSG_GETTABLE, family.Number(), nil, func() { found = TableInfo{} }, func(b []byte) error {
		if t, its := parseTable(b); its == name {
			found = t
		}
		return nil
	})
	return found, err
}

// dormant is the table flag NFT_TABLE_F_DORMANT.
const dormant = 1

// tableHandle is NFTA_TABLE_HANDLE, which golang.org/x/sys/unix lacks.
const tableHandle = 4

func parseTable(b []byte) (t TableInfo, name string) {
	t.Exists = true
	for typ, v := range netlink.Attributes(b) {
		switch typ {
		case unix.NFTA_TABLE_NAME:
			name = netlink.Text(v)
		case unix.NFTA_TABLE_FLAGS:
			t.Dormant = netlink.Uint32(v)&dormant != 0
		case tableHandle:
			t.Handle = netlink.Uint64(v)
		}
	}
	return t, name
}

// HasTable reports whether a table exists.
func (c *Conn) HasTable(family inet.Family, name string) (bool, error) {
	t, err := c.Table(family, name)
	return t.Exists, err
}

// Chains returns the chains of a table.
func (c *Conn) Chains(family inet.Family, table string) ([]ChainInfo, error) {
	var list []ChainInfo
	err := c.dump(unix.NFT_MSG_GETCHAIN, family.Number(), nil, func() { list = nil }, func(b []byte) error {
		if ch, in := parseChain(b); in == table {
			list = append(list, ch)
		}
		return nil
	})
	return list, err
}

func parseChain(b []byte) (ch ChainInfo, table string) {
	for typ, v := range netlink.Attributes(b) {
		switch typ {
		case unix.NFTA_CHAIN_TABLE:
			table = netlink.Text(v)
		case unix.NFTA_CHAIN_NAME:
			ch.Name = netlink.Text(v)
		case unix.NFTA_CHAIN_TYPE:
			ch.Type = netlink.Text(v)
		case unix.NFTA_CHAIN_POLICY:
			ch.Drops = netlink.Uint32(v) == nfDrop
		case unix.NFTA_CHAIN_USE:
			ch.Uses = netlink.Uint32(v)
		case unix.NFTA_CHAIN_HOOK:
			for typ, v := range netlink.Attributes(v) {
				switch typ {
				case unix.NFTA_HOOK_HOOKNUM:
					ch.Hook = netlink.Uint32(v)
				case unix.NFTA_HOOK_PRIORITY:
					ch.Priority = int32(netlink.Uint32(v))
				}
			}
		}
	}
	return ch, table
}

// Sets returns the sets and maps of a table, without anonymous ones.
func (c *Conn) Sets(family inet.Family, table string) ([]SetInfo, error) {
	var list []SetInfo
	request := attribute(unix.NFTA_SET_TABLE, cstring(table))
	err := c.dump(unix.NFT_MSG_GETSET, family.Number(), request, func() { list = nil }, func(b []byte) error {
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
	for typ, v := range netlink.Attributes(b) {
		switch typ {
		case unix.NFTA_SET_TABLE:
			table = netlink.Text(v)
		case unix.NFTA_SET_NAME:
			s.Name = netlink.Text(v)
		case unix.NFTA_SET_FLAGS:
			s.shape.flags = netlink.Uint32(v)
		case unix.NFTA_SET_KEY_TYPE:
			s.shape.keyType = netlink.Uint32(v)
		case unix.NFTA_SET_KEY_LEN:
			s.shape.keyLen = netlink.Uint32(v)
		case unix.NFTA_SET_DATA_TYPE:
			s.shape.dataType = netlink.Uint32(v)
		case unix.NFTA_SET_DATA_LEN:
			s.shape.dataLen = netlink.Uint32(v)
		case unix.NFTA_SET_USERDATA:
			s.shape.userData = string(v)
		case unix.NFTA_SET_TIMEOUT:
			s.shape.timeout = time.Duration(netlink.Uint64(v)) * time.Millisecond
		case setExpr:
			s.shape.expr, _ = expression(v)
		case setExpressions:
			var names []string
			for _, v := range netlink.Attributes(v) {
				name, _ := expression(v)
				names = append(names, name)
			}
			s.shape.expr = strings.Join(names, " ")
		case setCount:
			s.Count = int(netlink.Uint32(v))
		case unix.NFTA_SET_DESC:
			for typ, v := range netlink.Attributes(v) {
				if typ == unix.NFTA_SET_DESC_SIZE {
					s.Size = netlink.Uint32(v)
				}
			}
		}
	}
	return s, table
}

// RuleComments returns the comments of the rules of each chain of a table, in the order of the rules.
func (c *Conn) RuleComments(family inet.Family, table string) (map[string][]string, error) {
	var byChain map[string][]string
	request := attribute(unix.NFTA_RULE_TABLE, cstring(table))
	begin := func() { byChain = map[string][]string{} }
	err := c.dump(unix.NFT_MSG_GETRULE, family.Number(), request, begin, func(b []byte) error {
		if r := rawRuleOf(b); r.table == table {
			byChain[r.chain] = append(byChain[r.chain], commentOf(r.userData))
		}
		return nil
	})
	return byChain, err
}

// commentOf returns the comment (type 0) in nft's userdata of a rule or an element.
func commentOf(udata []byte) string {
	for len(udata) >= 2 && len(udata) >= 2+int(udata[1]) {
		if udata[0] == 0 {
			return netlink.Text(udata[2 : 2+int(udata[1])])
		}
		udata = udata[2+int(udata[1]):]
	}
	return ""
}

// Elements returns the elements of a set. The kernel's work grows with the square of their number: use it for small sets, or
// where latency does not matter. While the kernel resizes a set without a declared size, an element may be listed twice.
func (c *Conn) Elements(s *Set) ([]Element, error) {
	var list []Element
	err := c.dump(unix.NFT_MSG_GETSETELEM, s.Family.Number(), elementsOf(s), func() { list = nil }, func(object []byte) error {
		for _, b := range elements(object) {
			e, err := parseElement(s, b)
			if err != nil {
				return err
			}
			list = append(list, e)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list elements of %s %s: %w", s.Family.Keyword(), s.Name, err)
	}
	return list, nil
}

// elementsOf returns the attributes of a request for all elements of a set.
func elementsOf(s *Set) []byte {
	return append(attribute(unix.NFTA_SET_ELEM_LIST_TABLE, cstring(s.Table)), attribute(unix.NFTA_SET_ELEM_LIST_SET, cstring(s.Name))...)
}

// elements yields the elements in a message.
func elements(object []byte) iter.Seq2[uint16, []byte] {
	return netlink.Attributes(netlink.Find(object, unix.NFTA_SET_ELEM_LIST_ELEMENTS))
}

func parseElement(s *Set, b []byte) (Element, error) {
	e := Element{Set: s}
	var failed error
	value := func(nested []byte) (v Value) {
		for typ, b := range netlink.Attributes(nested) {
			switch {
			case typ != unix.NFTA_DATA_VALUE:
			case len(b) > maxValue:
				failed = fmt.Errorf("read element of %s: value of %d bytes", s.Name, len(b))
			default:
				v.n = byte(copy(v.b[:], b))
			}
		}
		return v
	}
	for typ, v := range netlink.Attributes(b) {
		switch typ {
		case unix.NFTA_SET_ELEM_KEY:
			e.Key = value(v)
		case setElemKeyEnd:
			e.KeyEnd = value(v)
		case unix.NFTA_SET_ELEM_FLAGS:
			e.IntervalEnd = netlink.Uint32(v)&unix.NFT_SET_ELEM_INTERVAL_END != 0
		case unix.NFTA_SET_ELEM_DATA:
			e.Data = value(v)
			var code int32
			e.Chain, code = verdict(v)
			e.Jump = code == unix.NFT_JUMP
		case unix.NFTA_SET_ELEM_USERDATA:
			e.Comment = commentOf(v)
		case unix.NFTA_SET_ELEM_EXPR:
			e.maximumOf(v)
		case setElemExpressions:
			for _, v := range netlink.Attributes(v) {
				e.maximumOf(v)
			}
		}
	}
	return e, failed
}

// maximumOf sets the maximum of connections of an element, if the expression has it.
func (e *Element) maximumOf(v []byte) {
	if name, data := expression(v); name == connlimitName {
		e.MaxConnections = uint16(netlink.Uint32(netlink.Find(data, connlimitCount)))
	}
}

func verdict(data []byte) (chain string, code int32) {
	v := netlink.Find(data, unix.NFTA_DATA_VERDICT)
	return netlink.Text(netlink.Find(v, unix.NFTA_VERDICT_CHAIN)), int32(netlink.Uint32(netlink.Find(v, unix.NFTA_VERDICT_CODE)))
}
