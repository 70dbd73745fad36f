package snapshot

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/framer"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/kubeapi"
)

// Format is the version of the file. Increase it when the program stores another field of an object, because a process
// would not receive the field of an object in an older file before the object changes.
const Format = 1

// MaxAge is the greatest age of a snapshot. In an outage of the API server, no controller changes an object, so the age
// does not matter. But a node that was off for longer than a night and a working day returns to a cluster whose pods
// have other addresses.
const MaxAge = 24 * time.Hour

// Limits of a file. etcd stores objects of 1.5 MB at most. The decoded form of an object can be 60 times as large.
const (
	largestFile   = 256 << 20
	largestObject = 2 << 20
)

// Identity identifies the writer of a snapshot. A process uses only snapshots with its own identity.
type Identity struct {
	// Cluster identifies the cluster, and Node this node.
	Cluster string `json:"cluster"`
	Node    string `json:"node"`
	// Stored describes the settings that select the stored objects and their fields.
	Stored string `json:"stored"`
}

// Header describes a snapshot.
type Header struct {
	Format int `json:"format"`
	Identity
	// Saved is the time at which the API server last confirmed the objects.
	Saved time.Time `json:"saved"`
	// Versions are the resource versions of the objects, by resource.
	Versions map[string]string `json:"versions"`
}

// errBroken means that a file is not a whole snapshot.
var errBroken = errors.New("the file is damaged")

func codec() runtime.Serializer {
	scheme := kubeapi.Scheme()
	return protobuf.NewSerializer(scheme, scheme)
}

// bounded writes up to a number of bytes.
type bounded struct {
	to   io.Writer
	left int
}

func (b *bounded) Write(data []byte) (int, error) {
	if b.left -= len(data); b.left < 0 {
		return 0, fmt.Errorf("the objects have more than %d bytes", largestFile)
	}
	return b.to.Write(data)
}

// Encode writes a snapshot. The objects need their kinds, see [runtime.Object.GetObjectKind]. It fails if [Decode]
// could not read the snapshot because of its size.
func Encode(w io.Writer, h *Header, objects iter.Seq[runtime.Object]) error {
	sum := sha256.New()
	buffered := bufio.NewWriterSize(&bounded{io.MultiWriter(w, sum), largestFile}, 64<<10)
	frames := framer.NewLengthDelimitedFrameWriter(buffered)
	data, err := json.Marshal(h)
	if err != nil {
		return err
	}
	if _, err := frames.Write(data); err != nil {
		return err
	}
	var object bytes.Buffer
	to := codec()
	for o := range objects {
		if o.GetObjectKind().GroupVersionKind().Empty() {
			return fmt.Errorf("an object of type %T has no kind", o)
		}
		object.Reset()
		if err := to.Encode(o, &object); err != nil {
			return err
		}
		if n := object.Len(); n > largestObject {
			return fmt.Errorf("an object has %d bytes, more than %d", n, largestObject)
		}
		if _, err := frames.Write(object.Bytes()); err != nil {
			return err
		}
	}
	if err := buffered.Flush(); err != nil {
		return err
	}
	_, err = w.Write(sum.Sum(nil))
	return err
}

// Decode reads a snapshot of a size, and passes each object to use. It calls use only for a file with the right
// checksum, the given identity, and an age up to [MaxAge]. After an error, forget the objects.
func Decode(r io.ReadSeeker, size int64, own Identity, now time.Time, use func(runtime.Object) error) (*Header, error) {
	size -= sha256.Size
	if size < 0 {
		return nil, errBroken
	}
	if size > largestFile {
		return nil, fmt.Errorf("the file has %d bytes, more than %d", size, largestFile)
	}
	if err := check(r, size); err != nil {
		return nil, err
	}
	frames := framer.NewLengthDelimitedFrameReader(io.NopCloser(bufio.NewReaderSize(io.LimitReader(r, size), 64<<10)))
	buffer := make([]byte, largestObject)
	n, err := frames.Read(buffer)
	if err != nil {
		return nil, errBroken
	}
	h := &Header{}
	if err := json.Unmarshal(buffer[:n], h); err != nil {
		return nil, errBroken
	}
	if err := h.usable(own, now); err != nil {
		return nil, err
	}
	from := codec()
	for {
		n, err := frames.Read(buffer)
		if errors.Is(err, io.EOF) {
			return h, nil
		}
		if err != nil {
			return nil, errBroken
		}
		o, _, err := from.Decode(buffer[:n], nil, nil)
		if err == nil {
			err = use(o)
		}
		if err != nil {
			return nil, fmt.Errorf("read an object: %w", err)
		}
	}
}

// check compares the checksum, and returns to the beginning.
func check(r io.ReadSeeker, size int64) error {
	sum, stored := sha256.New(), make([]byte, sha256.Size)
	if _, err := io.CopyN(sum, r, size); err != nil {
		return errBroken
	}
	if _, err := io.ReadFull(r, stored); err != nil || !bytes.Equal(stored, sum.Sum(nil)) {
		return errBroken
	}
	_, err := r.Seek(0, io.SeekStart)
	return err
}

// usable returns the reason why a process with an identity cannot use the snapshot.
func (h *Header) usable(own Identity, now time.Time) error {
	switch age := now.Sub(h.Saved); {
	case h.Format != Format:
		return fmt.Errorf("the file has format %d, and this version of the program uses %d", h.Format, Format)
	case h.Cluster != own.Cluster:
		return errors.New("the file is from another cluster, or the API server has another address or certificate " +
			"authority")
	case h.Node != own.Node:
		return fmt.Errorf("the file is from another node, %q", h.Node)
	case h.Stored != own.Stored:
		return errors.New("the file is from a process with other settings")
	case age > MaxAge:
		return fmt.Errorf("the file is too old: %v", age.Round(time.Second))
	case age < -MaxAge: // after a boot, the clock of a node without a battery may be late
		return fmt.Errorf("the file is from the future: the clock of this node is %v behind its time",
			-age.Round(time.Second))
	}
	return nil
}
