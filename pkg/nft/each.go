package nft

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// EachElement calls f for the elements of a set, which f must not keep. The cost is that of [Conn.Elements], but for the memory.
// While others change the ruleset it goes on: whoever needs to know whether they changed this table asks for the generation before and
// after, and for what was committed in between.
func (c *Conn) EachElement(s *Set, f func(*Element)) error {
	request := append(attribute(unix.NFTA_SET_ELEM_LIST_TABLE, cstring(s.Table)),
		attribute(unix.NFTA_SET_ELEM_LIST_SET, cstring(s.Name))...)
	var failed error
	err := c.dumpOnce(unix.NFT_MSG_GETSETELEM, s.Family, request, new(bool), func(b []byte) error {
		attrs(b, func(typ uint16, v []byte) {
			if typ != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
				return
			}
			attrs(v, func(_ uint16, v []byte) {
				e, err := parseElement(s, v)
				if err != nil {
					failed = err
				}
				f(&e)
			})
		})
		return failed
	})
	if err != nil {
		return fmt.Errorf("list elements of %s %s: %w", s.Family, s.Name, err)
	}
	return nil
}
