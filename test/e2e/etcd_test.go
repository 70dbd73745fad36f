//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// opsEach is the number of objects in one transaction; etcd takes 128.
const opsEach = 120

// etcd writes objects to the store of the API server, by etcd's HTTP gateway.
type etcd struct {
	w      *world
	url    string
	client *http.Client
	ops    []etcdOp
}

// etcdOp is one write of a transaction, in the gateway's JSON.
type etcdOp struct {
	Put struct {
		Key   []byte `json:"key"`
		Value []byte `json:"value"`
	} `json:"request_put"`
}

// etcd finds the cluster's etcd, which says on its command line where it serves.
func (w *world) etcd() *etcd {
	w.Helper()
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", w.api.Pids()[0]))
	if err != nil {
		w.Fatal(err)
	}
	_, after, found := strings.Cut(string(cmdline), "--listen-client-urls=")
	if !found {
		w.Fatalf("no --listen-client-urls in %q", cmdline)
	}
	url, _, _ := strings.Cut(after, "\x00")
	return &etcd{w: w, url: url, client: &http.Client{Timeout: time.Minute, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			return w.Node.Dial(ctx, model.TCP, netip.MustParseAddrPort(address))
		},
	}}}
}

// put writes an object in the form in which the API server stores it, sooner or later.
func (e *etcd) put(key string, obj runtime.Object, version schema.GroupVersion) {
	e.w.Helper()
	meta := obj.(metav1.Object)
	meta.SetUID(uuid.NewUUID())
	meta.SetResourceVersion("")
	meta.SetCreationTimestamp(metav1.Now())
	encoder := scheme.Codecs.EncoderForVersion(protobuf.NewSerializer(scheme.Scheme, scheme.Scheme), version)
	value, err := runtime.Encode(encoder, obj)
	if err != nil {
		e.w.Fatal(err)
	}
	var op etcdOp
	op.Put.Key, op.Put.Value = []byte("/registry/"+key), value
	if e.ops = append(e.ops, op); len(e.ops) == opsEach {
		e.flush()
	}
}

// flush writes what is left.
func (e *etcd) flush() {
	e.w.Helper()
	if len(e.ops) == 0 {
		return
	}
	body, err := json.Marshal(map[string][]etcdOp{"success": e.ops})
	if err != nil {
		e.w.Fatal(err)
	}
	e.ops = nil
	resp, err := e.client.Post(e.url+"/v3/kv/txn", "application/json", bytes.NewReader(body))
	if err != nil {
		e.w.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		e.w.Fatalf("write to etcd: %s %v: %s", resp.Status, err, answer)
	}
}
