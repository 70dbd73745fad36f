package watch

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// storedList is a list of objects in their stored form.
type storedList struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []runtime.Object
}

// DeepCopyObject implements runtime.Object.
func (l *storedList) DeepCopyObject() runtime.Object { return l }

// errWire means that a list is not valid protobuf.
var errWire = errors.New("not an encoded protobuf message")

// errNotProtobuf means that a list has another encoding.
var errNotProtobuf = errors.New("not an encoded protobuf list")

// magic is the prefix of the API's protobuf. A runtime.Unknown with the object follows.
const magic = "k8s\x00"

// streamer is a client that does not decode lists.
type streamer interface {
	Stream(context.Context, metav1.ListOptions) (io.ReadCloser, error)
}

// converter returns the stored form of an encoded object.
type converter func([]byte) (*object, error)

// converting returns a converter for objects of a kind. It reports an object that cannot be decoded, and returns it
// without a value, because an error would hide all other objects.
func converting[T any, P interface {
	*T
	metav1.Object
	Unmarshal([]byte) error
}](kind string, store func(*T) *object, report func(model.Problem)) converter {
	return func(data []byte) (*object, error) {
		item := new(T)
		err := P(item).Unmarshal(data)
		if err == nil {
			return store(item), nil
		}
		o := newObject(P(item), nil) // the name precedes all other fields
		if o.Name == "" {
			return nil, fmt.Errorf("decode a %s: %w", kind, err)
		}
		report(model.Problem{
			Kind: kind, Name: o.NamespacedName,
			Reason: fmt.Sprintf("the API server sent an object that cannot be read (%v); it is ignored", err),
		})
		return o, nil
	}
}

// lister returns a function that lists objects in their stored form, which it makes from each object while the API
// server sends the next one. So it needs memory for one decoded object only. If the API server sends another encoding
// than protobuf, the function calls fallback, which decodes the whole list.
func lister(from any, convert converter, fallback listFunc) listFunc {
	client, streams := from.(streamer)
	return func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		if !streams {
			return fallback(ctx, o)
		}
		body, err := client.Stream(ctx, o)
		if err != nil {
			return nil, err
		}
		list, err := readList(bufio.NewReaderSize(body, 64<<10), convert)
		if err = errors.Join(err, body.Close()); errors.Is(err, errNotProtobuf) {
			streams = false
			return fallback(ctx, o)
		}
		if err != nil {
			return nil, err
		}
		return list, nil
	}
}

// readList reads an encoded list: a runtime.Unknown, whose raw field has the list.
func readList(r *bufio.Reader, convert converter) (*storedList, error) {
	prefix := make([]byte, len(magic))
	if _, err := io.ReadFull(r, prefix); err != nil {
		return nil, fmt.Errorf("read a list: %w", asIncomplete(err))
	}
	if string(prefix) != magic {
		return nil, errNotProtobuf
	}
	const typeMeta, raw = 1, 2
	var list *storedList
	envelope := messageReader{r: r, left: -1}
	for envelope.next() {
		switch envelope.number {
		case typeMeta:
			var of runtime.TypeMeta
			data := envelope.content()
			if err := of.Unmarshal(data); envelope.err == nil && (err != nil || !strings.HasSuffix(of.Kind, "List")) {
				envelope.err = errors.Join(err, fmt.Errorf("the kind is %q", of.Kind))
			}
		case raw:
			list = &storedList{}
			inner := messageReader{r: r, left: envelope.size}
			list.read(&inner, convert)
			envelope.err = inner.err
		default:
			envelope.skip()
		}
	}
	err := envelope.err
	if err == nil && list == nil {
		err = errIncomplete
	}
	if err != nil {
		return nil, fmt.Errorf("read a list: %w", err)
	}
	return list, nil
}

// read reads the fields of a list.
func (l *storedList) read(m *messageReader, convert converter) {
	const metadata, items = 1, 2
	for m.next() {
		switch m.number {
		case metadata:
			if data := m.content(); m.err == nil {
				m.err = l.ListMeta.Unmarshal(data)
			}
		case items:
			data := m.content()
			if m.err != nil {
				return
			}
			var o *object
			if o, m.err = convert(data); m.err == nil {
				l.Items = append(l.Items, o)
			}
		default:
			m.skip()
		}
	}
}

// messageReader reads the fields of an encoded message from a stream. All fields of a list and of a runtime.Unknown
// are strings and messages.
type messageReader struct {
	r *bufio.Reader
	// left is the number of unread bytes; -1 if the message ends with the stream.
	left int
	// number and size are the number of the current field, and the size of its content.
	number, size int
	buffer       []byte
	err          error
}

// largestField is the greatest size of the content of a field, except the whole list. An API object has at most a few
// MB.
const largestField = 16 << 20

// next reads the tag and the size of the next field. Then call content or skip, or read size bytes. It returns false
// at the end and after an error.
func (m *messageReader) next() bool {
	if m.err != nil || m.left == 0 {
		return false
	}
	if _, err := m.r.Peek(1); m.left < 0 && errors.Is(err, io.EOF) {
		return false
	}
	tag, size := m.varint(), m.varint()
	m.number, m.size = int(tag>>3), int(size)
	tooLarge := m.size < 0 || m.left >= 0 && m.size > m.left
	if m.err == nil && (tooLarge || protowire.Type(tag&7) != protowire.BytesType) {
		m.err = errWire
	}
	if m.left > 0 {
		m.left -= m.size
	}
	return m.err == nil
}

func (m *messageReader) varint() uint64 {
	if m.err != nil {
		return 0
	}
	v, err := binary.ReadUvarint(m.r)
	if m.err = asIncomplete(err); m.left >= 0 {
		if m.left -= protowire.SizeVarint(v); m.left < 0 {
			m.err = errWire
		}
	}
	return v
}

// content reads the content of the field. The next call overwrites it.
func (m *messageReader) content() []byte {
	if m.size > largestField {
		m.err = errWire
		return nil
	}
	if cap(m.buffer) < m.size {
		m.buffer = make([]byte, 2*m.size)
	}
	data := m.buffer[:m.size]
	_, err := io.ReadFull(m.r, data)
	m.err = asIncomplete(err)
	return data
}

func (m *messageReader) skip() {
	_, err := m.r.Discard(m.size)
	m.err = asIncomplete(err)
}

// errIncomplete is not io.ErrUnexpectedEOF, which is a regular end of a watch.
var errIncomplete = errors.New("the answer is incomplete")

// asIncomplete returns errIncomplete for the end of a stream, and other errors unchanged.
func asIncomplete(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errIncomplete
	}
	return err
}
