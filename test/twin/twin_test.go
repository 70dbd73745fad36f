package twin

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

func TestDecode(t *testing.T) {
	objects, err := Decode([]byte(`apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIPs: [10.96.0.10, "fd00:10:96::10"], ports: [{port: 80}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: stray}
---
apiVersion: v1
kind: Node
metadata: {name: node-1}
`))
	lab.Must(t, err)
	var names []string
	for _, obj := range objects {
		names = append(names, nameOf(obj))
	}
	if diff := cmp.Diff([]string{"*v1.Service default/web", "*v1.Node /node-1"}, names); diff != "" {
		t.Fatalf("objects (-want +got):\n%s", diff)
	}
	spec := objects[0].(*corev1.Service).Spec
	want := corev1.ServiceSpec{
		ClusterIP: "10.96.0.10", ClusterIPs: []string{"10.96.0.10", "fd00:10:96::10"},
		IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}, Ports: spec.Ports, Type: spec.Type,
		SessionAffinity: spec.SessionAffinity, InternalTrafficPolicy: spec.InternalTrafficPolicy,
	}
	lab.Same(t, want, spec, "spec")
	if _, err := Decode([]byte("apiVersion: v1\nkind: Service\nspec: {ports: 80}\n")); err == nil {
		t.Error("Decode() of ports that are a number = nil, want an error")
	}
}

// TestForward reaches a server of this namespace from a lab's host, until the forwarder is closed.
func TestForward(t *testing.T) {
	l := lab.ForTest(t, lab.Config{})
	server, err := net.Listen("tcp", "127.0.0.1:0")
	lab.Must(t, err)
	defer server.Close() //nolint:errcheck // the result does not matter
	go echo(server)
	at := netip.MustParseAddrPort(server.Addr().String())
	f, err := Forward(l.Node, at)
	lab.Must(t, err)
	conn, err := l.Node.Dial(t.Context(), inet.TCP, at)
	lab.Must(t, err)
	defer conn.Close() //nolint:errcheck // unused from here on
	if _, err := conn.Write([]byte("hello\n")); err != nil {
		t.Fatal(err)
	}
	if got, err := bufio.NewReader(conn).ReadString('\n'); got != "hello\n" || err != nil {
		t.Fatalf("read %q, %v, want what was written", got, err)
	}
	lab.Must(t, f.Close())
	lab.Must(t, conn.SetDeadline(time.Now().Add(5*time.Second)))
	if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after Close: read %d bytes, %v, want that the connection has ended", n, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if conn, err := l.Node.Dial(ctx, inet.TCP, at); err == nil {
		_ = conn.Close()
		t.Error("after Close a new connection is accepted")
	}
}

func echo(server net.Listener) {
	for {
		conn, err := server.Accept()
		if err != nil {
			return
		}
		go func() {
			_, _ = io.Copy(conn, conn) // the result does not matter
			_ = conn.Close()
		}()
	}
}

// TestMarks changes the state that each mark stands for: exactly that mark must change.
func TestMarks(t *testing.T) {
	objects := func(zone string, cidr ...string) map[string]runtime.Object {
		all := map[string]runtime.Object{}
		manifest := "apiVersion: v1\nkind: Node\nmetadata: {name: node-1, labels: {topology.kubernetes.io/zone: \"" + zone + "\"}}\n"
		for _, c := range cidr {
			manifest += "---\napiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: c}\nspec: {cidrs: [" + c + "]}\n"
		}
		list, err := Decode([]byte(manifest))
		lab.Must(t, err)
		for _, obj := range list {
			all[nameOf(obj)] = obj
		}
		return all
	}
	var m marks
	before := map[string]runtime.Object{}
	for _, tc := range []struct {
		name  string
		after map[string]runtime.Object
		want  marks
	}{
		{"at first", objects("a", "10.96.0.0/16"), marks{number: 1, zone: "a", homed: true, ranges: 1}},
		{"nothing changed", objects("a", "10.96.0.0/16"), marks{number: 2, zone: "a", homed: true, ranges: 1}},
		{"another zone", objects("b", "10.96.0.0/16"), marks{number: 3, zone: "b", homed: true, ranges: 1}},
		{"no zone", objects("", "10.96.0.0/16"), marks{number: 4, zone: "b", ranges: 1}},
		{"another range", objects("", "10.97.0.0/16"), marks{number: 5, zone: "b", ranges: 2}},
		{"no range", objects("c"), marks{number: 6, zone: "c", homed: true, ranges: 3}},
	} {
		m.advance(before, tc.after, "node-1")
		if m != tc.want {
			t.Errorf("%s: %+v, want %+v", tc.name, m, tc.want)
		}
		before = tc.after
	}
}
