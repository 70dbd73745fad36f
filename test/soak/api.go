package soak

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"path"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// remembered is the number of stored events of each kind. A watch that is further behind cannot continue.
const remembered = 1 << 14

// API is an API server. Its methods are safe for concurrent use.
type API struct {
	server *http.Server
	// Delivered counts the events that were written to a client.
	Delivered atomic.Int64

	mu      sync.Mutex
	changed *sync.Cond
	version int64
	kinds   map[string]*kind
	conns   map[net.Conn]struct{}
	away    bool
	ends    int // an increment ends all watches
}

// kind has the objects of one kind, and the latest events.
type kind struct {
	api     *API
	version string // of the API group
	name    string
	// objects are encoded.
	objects map[string][]byte
	events  [remembered]stored
	next    int64 // the number of the next event
	oldest  int64 // watches from earlier versions cannot continue
	readers map[*int64]struct{}
}

// stored is an encoded event.
type stored struct {
	version int64
	frame   []byte
}

// object is a pointer to an API type.
type object interface {
	metav1.Object
	Marshal() ([]byte, error)
}

// Serve returns an API server that answers requests on a listener until Close.
func Serve(l net.Listener) *API {
	a := &API{version: 1, conns: map[net.Conn]struct{}{}}
	a.changed = sync.NewCond(&a.mu)
	add := func(version, name string) *kind {
		return &kind{api: a, version: version, name: name, objects: map[string][]byte{}, readers: map[*int64]struct{}{}}
	}
	a.kinds = map[string]*kind{
		"services":       add("v1", "Service"),
		"nodes":          add("v1", "Node"),
		"endpointslices": add("discovery.k8s.io/v1", "EndpointSlice"),
		"servicecidrs":   add("networking.k8s.io/v1", "ServiceCIDR"),
	}
	a.server = &http.Server{Handler: a, ReadHeaderTimeout: time.Minute, ConnState: a.connection}
	go func() { _ = a.server.Serve(l) }() // until Close
	return a
}

// Close ends all watches, connections and the server.
func (a *API) Close() {
	a.EndWatches()
	_ = a.server.Close() // the error does not matter
}

func (a *API) connection(c net.Conn, state http.ConnState) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch state {
	case http.StateNew:
		a.conns[c] = struct{}{}
	case http.StateClosed, http.StateHijacked:
		delete(a.conns, c)
	}
}

// Cut closes all connections.
func (a *API) Cut() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for c := range a.conns {
		_ = c.Close() // the fault
	}
	a.changed.Broadcast()
}

// EndWatches ends all watches.
func (a *API) EndWatches() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ends++
	a.changed.Broadcast()
}

// Forget drops all stored events and ends all watches. So a client must list all objects again.
func (a *API) Forget() {
	a.mu.Lock()
	for _, k := range a.kinds {
		k.next += remembered
		clear(k.events[:])
		k.oldest = a.version
	}
	a.mu.Unlock()
	a.EndWatches()
}

// SetAway ends all watches. If away is true, the server then rejects all requests except Events with status 503, until a call with false.
func (a *API) SetAway(away bool) {
	a.mu.Lock()
	a.away = away
	a.mu.Unlock()
	a.EndWatches()
}

// Put stores an object, and sends an event to watches.
func (a *API) Put(resource string, o object) error { return a.change(resource, o, true) }

// Delete deletes an object, and sends an event to watches.
func (a *API) Delete(resource string, o object) error { return a.change(resource, o, false) }

func (a *API) change(resource string, o object, exists bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	k, key := a.kinds[resource], o.GetNamespace()+"/"+o.GetName()
	_, existed := k.objects[key]
	event := "MODIFIED"
	switch {
	case !exists && !existed:
		return nil
	case !exists:
		event = "DELETED"
	case !existed:
		event = "ADDED"
	}
	a.version++
	o.SetResourceVersion(strconv.FormatInt(a.version, 10))
	data, err := o.Marshal()
	if err != nil {
		return fmt.Errorf("encode %s: %w", k.name, err)
	}
	raw, err := k.encode(k.name, data)
	if err != nil {
		return err
	}
	delete(k.objects, key)
	if exists {
		k.objects[key] = data
	}
	k.events[k.next%remembered] = stored{a.version, frame(event, raw)}
	k.next++
	a.changed.Broadcast()
	return nil
}

// Lag returns the largest number of unsent events of a watch.
func (a *API) Lag() (lag int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, k := range a.kinds {
		for at := range k.readers {
			lag = max(lag, k.next-*at)
		}
	}
	return lag
}

// Watched reports whether both Services and EndpointSlices are watched.
func (a *API) Watched() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.kinds["services"].readers) > 0 && len(a.kinds["endpointslices"].readers) > 0
}

// encode returns an encoded object or list in the protobuf envelope of the API.
func (k *kind) encode(name string, data []byte) ([]byte, error) {
	envelope := &runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: k.version, Kind: name}, Raw: data}
	raw, err := envelope.Marshal()
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", name, err)
	}
	return append([]byte("k8s\x00"), raw...), nil
}

func frame(event string, raw []byte) []byte {
	encoded, err := (&metav1.WatchEvent{Type: event, Object: runtime.RawExtension{Raw: raw}}).Marshal()
	if err != nil {
		panic(err) // Marshal fails only without a required field, and this type has none
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(encoded))), encoded...)
}

// ServeHTTP implements http.Handler.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	away, k := a.away, a.kinds[path.Base(r.URL.Path)]
	a.mu.Unlock()
	query := r.URL.Query()
	switch {
	case r.Method == http.MethodPost: // an Event
		w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
		w.WriteHeader(http.StatusCreated)
		_, _ = io.Copy(w, r.Body) // the client may have disconnected
		return
	case away, k == nil:
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	case query.Get("watch") == "":
		data, err := k.list(!query.Has("limit"))
		if err != nil {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
		_, _ = w.Write(data) // the client may have disconnected
		return
	}
	version, _ := strconv.ParseInt(query.Get("resourceVersion"), 10, 64)
	at := k.begin(version)
	if at == nil {
		w.WriteHeader(http.StatusGone)
		return
	}
	defer k.leave(at)
	w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf;stream=watch")
	k.stream(r, w, at)
}

// list returns the encoded list, with all objects or without objects.
func (k *kind) list(all bool) ([]byte, error) {
	const metadata, items = 1, 2 // fields of all lists
	k.api.mu.Lock()
	defer k.api.mu.Unlock()
	meta, err := (&metav1.ListMeta{ResourceVersion: strconv.FormatInt(k.api.version, 10)}).Marshal()
	if err != nil {
		return nil, fmt.Errorf("encode a list of %s: %w", k.name, err)
	}
	data := protowire.AppendBytes(protowire.AppendTag(nil, metadata, protowire.BytesType), meta)
	if all {
		for _, o := range k.objects {
			data = protowire.AppendBytes(protowire.AppendTag(data, items, protowire.BytesType), o)
		}
	}
	return k.encode(k.name+"List", data)
}

// begin registers a watch. It returns a pointer to the number of the next event, or nil if events after the version were dropped.
func (k *kind) begin(version int64) (at *int64) {
	k.api.mu.Lock()
	defer k.api.mu.Unlock()
	next := k.next
	for next > 0 && k.next-next < remembered && k.events[(next-1)%remembered].version > version {
		next--
	}
	if version < k.oldest || k.next-next == remembered {
		return nil
	}
	k.readers[&next] = struct{}{}
	return &next
}

func (k *kind) leave(at *int64) {
	k.api.mu.Lock()
	defer k.api.mu.Unlock()
	delete(k.readers, at)
}

// stream sends events until the watch ends or falls too far behind.
func (k *kind) stream(r *http.Request, w http.ResponseWriter, at *int64) {
	var frames [][]byte
	flusher := w.(http.Flusher)
	k.api.mu.Lock()
	ends := k.api.ends
	k.api.mu.Unlock()
	for {
		for _, f := range frames {
			if _, err := w.Write(f); err != nil {
				return
			}
		}
		flusher.Flush()
		k.api.Delivered.Add(int64(len(frames)))
		frames = frames[:0]
		k.api.mu.Lock()
		for k.next == *at && k.api.ends == ends && r.Context().Err() == nil {
			k.api.changed.Wait()
		}
		if k.api.ends != ends || r.Context().Err() != nil || k.next-*at > remembered {
			k.api.mu.Unlock()
			return
		}
		for ; *at < k.next; *at++ {
			frames = append(frames, k.events[*at%remembered].frame)
		}
		k.api.mu.Unlock()
	}
}
