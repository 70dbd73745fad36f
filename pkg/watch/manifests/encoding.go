package manifests

import (
	"bytes"
	"encoding/binary"
	"errors"
	"unicode/utf16"
	"unicode/utf8"
)

var (
	errUTF32  = errors.New("the file has the encoding UTF-32: save it as UTF-8")
	errHalved = errors.New("the file has the encoding UTF-16, and ends within a character")
)

// decode returns a file as UTF-8, without its byte order mark. It recognises the encoding by the first bytes (YAML 1.2,
// section 5.2): by the byte order mark, or by the zeros of the first character, which is in ASCII. Some tools on
// Windows write UTF-16.
func decode(content []byte) ([]byte, error) {
	starts := func(with string) bool { return bytes.HasPrefix(content, []byte(with)) }
	zeros := func(first, n int) bool {
		return len(content) >= 4 && bytes.Count(content[first:first+n], []byte{0}) == n
	}
	switch {
	case starts("\xff\xfe\x00\x00"), starts("\x00\x00\xfe\xff"), zeros(1, 3), zeros(0, 3):
		return nil, errUTF32
	case starts("\xff\xfe"), zeros(1, 1):
		return fromUTF16(content, binary.LittleEndian)
	case starts("\xfe\xff"), zeros(0, 1):
		return fromUTF16(content, binary.BigEndian)
	}
	return bytes.TrimPrefix(content, []byte(byteOrderMark)), nil
}

const byteOrderMark = "\ufeff"

// fromUTF16 needs no memory beyond its result: a file may be large.
func fromUTF16(content []byte, order binary.ByteOrder) ([]byte, error) {
	const unit = 2
	if len(content)%unit != 0 {
		return nil, errHalved
	}
	out := make([]byte, 0, len(content)/unit)
	for ; len(content) > 0; content = content[unit:] {
		r := rune(order.Uint16(content))
		if utf16.IsSurrogate(r) {
			var second rune
			if len(content) > unit {
				second = rune(order.Uint16(content[unit:]))
			}
			if r = utf16.DecodeRune(r, second); r != utf8.RuneError {
				content = content[unit:]
			}
		}
		out = utf8.AppendRune(out, r)
	}
	return bytes.TrimPrefix(out, []byte(byteOrderMark)), nil
}
