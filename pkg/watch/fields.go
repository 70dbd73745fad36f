package watch

import (
	"errors"

	"google.golang.org/protobuf/encoding/protowire"
)

var errWire = errors.New("not an encoded protobuf message")

// fieldReader reads the fields of an encoded message, one after the other. Objects from the API server are bytes. Stored objects are strings, so that
// decoded strings share their memory.
type fieldReader[T []byte | string] struct {
	rest T
	// err is the first error. next returns false after it.
	err error

	// These values describe the current field, which next has read. encoded is the whole field, and tagLen the length of its tag.
	number  int
	kind    protowire.Type
	encoded T
	tagLen  int
	// content is the string or the message, value the number.
	content T
	value   uint64
}

// next reads the next field. It returns false at the end of the message, and if the rest is invalid. Protobuf groups are invalid, because no API
// object uses them.
func (f *fieldReader[T]) next() bool {
	if len(f.rest) == 0 || f.err != nil {
		return false
	}
	data := f.rest
	tag, n := varint(data)
	f.number, f.kind, f.tagLen = int(tag>>3), protowire.Type(tag&7), n
	var end int
	var none T
	f.content, f.value = none, 0
	switch value, size := varint(data[n:]); f.kind {
	case protowire.VarintType:
		f.value, end = value, n+size
		if size == 0 {
			n = 0
		}
	case protowire.BytesType:
		if n += size; size == 0 || value > uint64(len(data)-n) {
			n = 0
			break
		}
		end = n + int(value)
		f.content = data[n:end]
	case protowire.Fixed32Type:
		end = n + 4
	case protowire.Fixed64Type:
		end = n + 8
	}
	if n == 0 || end == 0 || end > len(data) || tag>>3 == 0 || tag>>3 > uint64(protowire.MaxValidNumber) {
		f.err = errWire
		return false
	}
	f.encoded, f.rest = data[:end], data[end:]
	return true
}

// text returns the string or message of the current field. If the field is a number, the whole message is invalid.
func (f *fieldReader[T]) text() T {
	f.expect(protowire.BytesType)
	return f.content
}

// integer returns the number of the current field. If the field is not a number, the whole message is invalid.
func (f *fieldReader[T]) integer() uint64 {
	f.expect(protowire.VarintType)
	return f.value
}

// within returns the content of the last field with a given number in the current field, which is a message.
func (f *fieldReader[T]) within(number int) (content T) {
	inner := fieldReader[T]{rest: f.text()}
	for inner.next() {
		if inner.number == number {
			content = inner.text()
		}
	}
	f.fail(inner.err)
	return content
}

func (f *fieldReader[T]) expect(kind protowire.Type) {
	if f.kind != kind {
		f.fail(errWire)
	}
}

// fail sets the first error.
func (f *fieldReader[T]) fail(err error) {
	if f.err == nil {
		f.err = err
	}
}

// varint returns the number at the start of data, and the length of its encoding. The length is 0 if the encoding is invalid.
func varint[T []byte | string](data T) (v uint64, n int) {
	if len(data) > 0 && data[0] < 0x80 { // almost always
		return uint64(data[0]), 1
	}
	const longest = 10
	v, n = protowire.ConsumeVarint([]byte(data[:min(len(data), longest)]))
	return v, max(n, 0)
}

// find returns the content of a message's last field with the given number, or the zero value.
func find[T []byte | string](data T, number int) (content T) {
	f := fieldReader[T]{rest: data}
	for f.next() {
		if f.number == number {
			content = f.content
		}
	}
	return content
}

// count returns how often a message contains the field with the given number.
func count[T []byte | string](data T, number int) (n int) {
	f := fieldReader[T]{rest: data}
	for f.next() {
		if f.number == number {
			n++
		}
	}
	return n
}

// Numbers of the fields of a map's entry.
const keyField, valueField = 1, 2

// entry returns the value of a key in the map field with the given number, and reports whether the map has the key.
func entry(data []byte, number int, key string) (value string, ok bool) {
	f := fieldReader[[]byte]{rest: data}
	for f.next() {
		if f.number == number && string(find(f.content, keyField)) == key {
			value, ok = string(find(f.content, valueField)), true
		}
	}
	return value, ok
}
