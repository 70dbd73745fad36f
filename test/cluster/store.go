package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes/scheme"
)

// Store writes objects directly to etcd, in the API server's storage format. The API server serves and watches them as others. A
// Store does not default, validate or allocate, so it can hold invalid objects and very many objects: the API server's allocator
// of cluster IPs counts all of them for each new one, so 10,000 Services take minutes.
type Store struct {
	ctx    context.Context
	url    string
	client *http.Client
	each   int // operations in a transaction
	ops    []storeOp
	err    error
}

// storeOp is one write of a transaction, in the JSON of etcd's HTTP gateway.
type storeOp struct {
	Put    *storePut    `json:"request_put,omitempty"`
	Delete *storeDelete `json:"request_delete_range,omitempty"`
}

type storePut struct {
	Key   []byte `json:"key"`
	Value []byte `json:"value"`
}

type storeDelete struct {
	Key []byte `json:"key"`
}

// opsEach is the number of objects in one transaction; etcd takes 128.
const opsEach = 120

// Singly writes each object in its own transaction, as the API server does. All writes of a transaction have one resource
// version. After the end of a watch, a client continues behind the last version that it has seen. If the watch of a slow client
// ends in the middle of a transaction, the client never sees the rest. So a caller that writes many objects during a watch should
// write them singly.
func (s *Store) Singly() *Store {
	s.each = 1
	return s
}

// Store returns a store that works until the context ends.
func (c *Cluster) Store(ctx context.Context) *Store {
	return &Store{ctx: ctx, url: c.etcd, each: opsEach, client: &http.Client{
		Timeout: time.Minute, Transport: &http.Transport{DialContext: c.dial()},
	}}
}

// Service stores a new Service with the cluster IP that it names, and the IPAddress that claims it. The Service should be a copy
// of one that the API server has returned.
func (s *Store) Service(svc *corev1.Service) {
	ip, err := netip.ParseAddr(svc.Spec.ClusterIP)
	if err != nil {
		s.err = errors.Join(s.err, fmt.Errorf("store Service %s: %w", svc.Name, err))
		return
	}
	family := corev1.IPv4Protocol
	if ip.Is6() {
		family = corev1.IPv6Protocol
	}
	s.create(&networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Name: svc.Spec.ClusterIP, Labels: map[string]string{
			networkingv1.LabelIPAddressFamily: string(family), networkingv1.LabelManagedBy: "ipallocator.k8s.io",
		}},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{
			Resource: "services", Namespace: svc.Namespace, Name: svc.Name,
		}},
	})
	s.create(svc)
}

// Slice stores a new EndpointSlice. It should be a copy of one that the API server has returned.
func (s *Store) Slice(slice *discoveryv1.EndpointSlice) { s.create(slice) }

// create stores an object with a new UID and creation time.
func (s *Store) create(obj runtime.Object) {
	meta := obj.(metav1.Object)
	meta.SetUID(uuid.NewUUID())
	meta.SetResourceVersion("")
	meta.SetCreationTimestamp(metav1.Now())
	s.Put(obj)
}

// Put stores an object unchanged, in place of one with its name: a Service, EndpointSlice, Pod, Node or ServiceCIDR. It should have
// a UID and a creation time, and no resource version.
func (s *Store) Put(obj runtime.Object) {
	key, version, err := storeKey(obj)
	if err != nil {
		s.err = errors.Join(s.err, err)
		return
	}
	encoder := scheme.Codecs.EncoderForVersion(protobuf.NewSerializer(scheme.Scheme, scheme.Scheme), version)
	value, err := runtime.Encode(encoder, obj)
	if err != nil {
		s.err = errors.Join(s.err, fmt.Errorf("encode %s: %w", key, err))
		return
	}
	s.add(storeOp{Put: &storePut{[]byte(key), value}})
}

// Delete deletes the object of that type and name, and ignores finalizers. A missing object is no error.
func (s *Store) Delete(obj runtime.Object) {
	key, _, err := storeKey(obj)
	if err != nil {
		s.err = errors.Join(s.err, err)
		return
	}
	s.add(storeOp{Delete: &storeDelete{[]byte(key)}})
}

// storeKey returns the key of an object in etcd, and its storage version.
func storeKey(obj runtime.Object) (key string, version schema.GroupVersion, err error) {
	switch obj := obj.(type) {
	case *corev1.Service:
		return "/registry/services/specs/" + namespaceOf(obj) + "/" + obj.Name, corev1.SchemeGroupVersion, nil
	case *discoveryv1.EndpointSlice:
		return "/registry/endpointslices/" + namespaceOf(obj) + "/" + obj.Name, discoveryv1.SchemeGroupVersion, nil
	case *corev1.Pod:
		return "/registry/pods/" + namespaceOf(obj) + "/" + obj.Name, corev1.SchemeGroupVersion, nil
	case *corev1.Node:
		return "/registry/minions/" + obj.Name, corev1.SchemeGroupVersion, nil
	case *networkingv1.ServiceCIDR:
		return "/registry/servicecidrs/" + obj.Name, networkingv1.SchemeGroupVersion, nil
	case *networkingv1.IPAddress:
		return "/registry/ipaddresses/" + obj.Name, networkingv1.SchemeGroupVersion, nil
	}
	return "", version, fmt.Errorf("store %s: unknown type", describe(obj))
}

// add queues a write.
func (s *Store) add(op storeOp) {
	if s.ops = append(s.ops, op); len(s.ops) >= s.each {
		s.err = errors.Join(s.err, s.write())
	}
}

// Flush writes the queued objects, and returns all errors.
func (s *Store) Flush() error {
	if len(s.ops) > 0 {
		s.err = errors.Join(s.err, s.write())
	}
	return s.err
}

func (s *Store) write() error {
	ops := s.ops
	s.ops = nil
	_, err := s.ask("/v3/kv/txn", map[string][]storeOp{"success": ops})
	return err
}

// Compact makes etcd drop its history: a client that has not seen the present state cannot continue a watch.
func (s *Store) Compact() error {
	answer, err := s.ask("/v3/kv/range", map[string][]byte{"key": []byte("/")})
	if err != nil {
		return err
	}
	var now struct {
		Header struct{ Revision string }
	}
	if err := json.Unmarshal(answer, &now); err != nil {
		return fmt.Errorf("read etcd's revision: %w", err)
	}
	_, err = s.ask("/v3/kv/compaction", map[string]any{"revision": now.Header.Revision, "physical": true})
	return err
}

// ask sends a request to etcd's HTTP gateway and returns the answer.
func (s *Store) ask(path string, request any) (answer []byte, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("ask etcd: %w", err)
		}
	}()
	body, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(s.ctx, http.MethodPost, s.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // it has been read
	answer, err = io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, answer)
	}
	return answer, err
}
