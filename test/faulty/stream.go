package faulty

import (
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"net/http"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
)

// Event is one event of a watch.
type Event struct {
	// Resource is the plural name of what is watched.
	Resource string
	// Type is ADDED, MODIFIED, DELETED, BOOKMARK or ERROR.
	Type string
	// Raw is the object as protobuf, with the envelope that the API puts around it.
	Raw []byte
}

// Object returns the event's object.
func (e Event) Object() (runtime.Object, error) {
	return runtime.Decode(scheme.Codecs.UniversalDeserializer(), e.Raw)
}

// stream is a watch on its way to the client. Frames are four bytes with the length of an encoded WatchEvent, and that.
type stream struct {
	resource string
	upstream io.ReadCloser
	*io.PipeReader
	to   *io.PipeWriter
	mu   sync.Mutex // of writing whole frames
	once sync.Once
}

func newStream(resource string, upstream io.ReadCloser) *stream {
	s := &stream{resource: resource, upstream: upstream}
	s.PipeReader, s.to = io.Pipe()
	return s
}

// run passes events on until one side ends.
func (s *stream) run(edit func(Event) []Event) {
	defer s.end()
	for {
		e, err := s.next()
		if err != nil {
			return
		}
		for _, e := range edit(e) {
			if s.write(e) != nil {
				return
			}
		}
	}
}

func (s *stream) next() (Event, error) {
	var length [4]byte
	if _, err := io.ReadFull(s.upstream, length[:]); err != nil {
		return Event{}, err
	}
	frame := make([]byte, binary.BigEndian.Uint32(length[:]))
	if _, err := io.ReadFull(s.upstream, frame); err != nil {
		return Event{}, err
	}
	var e metav1.WatchEvent
	if err := e.Unmarshal(frame); err != nil {
		return Event{}, fmt.Errorf("read event: %w", err)
	}
	return Event{s.resource, e.Type, e.Object.Raw}, nil
}

func (s *stream) write(e Event) error {
	frame, err := e.frame()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err = s.to.Write(frame)
	return err
}

func (e Event) frame() ([]byte, error) {
	event := metav1.WatchEvent{Type: e.Type, Object: runtime.RawExtension{Raw: e.Raw}}
	encoded, err := event.Marshal()
	if err != nil {
		return nil, fmt.Errorf("write event: %w", err)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(encoded))), encoded...), nil
}

// end lets the client read to the end of an event, and then no more.
func (s *stream) end() {
	s.once.Do(func() {
		_ = s.to.Close()       // it returns nil
		_ = s.upstream.Close() // it was only read
	})
}

// expire says that the watch can't go on from where it was.
func (s *stream) expire() {
	status := &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonExpired, Message: "expired on purpose"}
	encoder := scheme.Codecs.EncoderForVersion(protobuf.NewSerializer(scheme.Scheme, scheme.Scheme), metav1.SchemeGroupVersion)
	raw, err := runtime.Encode(encoder, status)
	if err != nil {
		panic(err) // it is always the same
	}
	go func() {
		_ = s.write(Event{s.resource, "ERROR", raw}) // the client may have gone
		s.end()
	}()
}

// Close implements io.Closer.
func (s *stream) Close() error {
	s.end()
	return s.PipeReader.Close()
}

func silent() *log.Logger { return log.New(io.Discard, "", 0) }
