//go:build twin

package scenario

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/cluster"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/page"
	process "github.com/kube-nftproxy/kube-nftproxy/test/program"
	"github.com/kube-nftproxy/kube-nftproxy/test/twin"
)

// serving is a way to serve the Service on all nodes.
type serving struct {
	title  string
	theirs bool
	policy corev1.ServiceExternalTrafficPolicy
	// annotations and flags are those of direct server return.
	annotations, flags string
}

const (
	byCluster = corev1.ServiceExternalTrafficPolicyCluster
	byLocal   = corev1.ServiceExternalTrafficPolicyLocal
)

var servings = []serving{
	{title: "kube-proxy, Cluster", theirs: true, policy: byCluster},
	{title: "kube-proxy, Local", theirs: true, policy: byLocal},
	{title: "kube-nftproxy, Cluster", policy: byCluster},
	{title: "kube-nftproxy, DSR", policy: byCluster, annotations: dsr, flags: "--direct-server-return"},
}

// TestTwinECMP counts the connections of 1,000 that each incident ends, with kube-proxy and with the program. OUTPUT
// names a checkout whose page gets the table.
func TestTwinECMP(t *testing.T) {
	const connections = 1000
	theirs, ours, err := twin.Build(t.Context(), t.TempDir(), os.Stderr)
	lab.Must(t, err)
	dir := t.TempDir()
	api, err := cluster.Start(t.Context(), cluster.Config{Dir: filepath.Join(dir, "cluster")})
	lab.Must(t, err)
	t.Cleanup(api.Stop)
	kubeconfig := filepath.Join(dir, "kubeconfig")
	lab.Must(t, api.Kubeconfig(kubeconfig, false))
	lab.Must(t, api.Apply(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}))
	cells := map[string][]string{}
	for _, s := range servings {
		t.Run(s.title, func(t *testing.T) {
			path := ours
			if s.theirs {
				path = theirs
			}
			f := newFleet(t, api, s, path, kubeconfig)
			for _, e := range incidents {
				for _, family := range inet.Families {
					lost, of := f.play(e, family, connections)
					t.Logf("%s %s: %d of %d connections are lost", e.name, family, lost, of)
					cells[e.name] = append(cells[e.name], fmt.Sprintf("%d of %d", lost, of))
					if most := e.most * connections / 100; s.annotations == dsr && lost > most {
						t.Errorf("%s %s: %d connections are lost, want at most %d", e.name, family, lost, most)
					}
				}
			}
		})
	}
	table := ecmpTable(cells)
	t.Logf("connections lost:\n%s", table)
	if root := os.Getenv("OUTPUT"); root != "" && !t.Failed() {
		lab.Must(t, page.Write(filepath.Join(root, "docs/dsr.md"), "ecmp", table))
	}
}

// newFleet starts a program on each of three nodes, which follow an API server.
func newFleet(t *testing.T, api *cluster.Cluster, s serving, path, kubeconfig string) *fleet {
	t.Helper()
	f := &fleet{fabric: newNetwork(t, 3)}
	running := make([]*process.Program, len(f.nodes))
	for _, n := range f.nodes {
		forward, err := twin.Forward(n, api.Server())
		lab.Must(t, err)
		t.Cleanup(func() { _ = forward.Close() })
	}
	start := func(node int) *process.Program {
		return process.ForTest(t, process.Config{Host: f.nodes[node], Path: path, Args: append(strings.Fields(s.flags),
			"--kubeconfig="+kubeconfig, fmt.Sprintf("--hostname-override=node-%d", node+1), "--proxy-mode=nftables",
			"--cluster-cidr=10.244.0.0/16,fd00:10:244::/48", "--v=2",
			// Other values would set sysctls of the whole machine.
			"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0",
			"--conntrack-tcp-timeout-close-wait=0")})
	}
	f.publish = func(endpoints string) {
		lab.Must(t, api.Apply(t.Context(), f.objects(s, endpoints)...))
		f.awaitEndpoints(endpoints)
	}
	f.restart = func() {
		for i, p := range running {
			if p != nil {
				lab.Must(t, p.Signal(syscall.SIGTERM))
				_ = p.Wait() // SIGTERM kills kube-proxy, so the error is expected
			}
			running[i] = start(i)
			running[i].Synced(t)
		}
		f.awaitEndpoints("1 2 3")
	}
	lab.Must(t, api.Apply(t.Context(), f.objects(s, "1 2 3")...))
	f.restart()
	f.hashPorts()
	return f
}

// objects are the Nodes, the Service and its EndpointSlices.
func (f *fleet) objects(s serving, endpoints string) (list []runtime.Object) {
	f.Helper()
	for i := range f.nodes {
		decoded, err := twin.Decode([]byte(f.service(i, s.annotations, endpoints)))
		lab.Must(f, err)
		for _, o := range decoded {
			if service, is := o.(*corev1.Service); is {
				service.Spec.ExternalTrafficPolicy = s.policy
			}
		}
		list = append(list, decoded...)
	}
	return list
}

// awaitEndpoints waits until the rules of each node have the endpoints. kube-proxy syncs once a second, and deletes the
// rules of removed endpoints later.
func (f *fleet) awaitEndpoints(endpoints string) {
	f.Helper()
	for _, n := range f.nodes {
		lab.Eventually(f, lab.Patience, func() error {
			rules := f.script(n, "nft list ruleset")
			for e := range strings.FieldsSeq(endpoints) {
				if !strings.Contains(rules, "10.244."+e+".5") || !strings.Contains(rules, "fd00:10:244:"+e+"::5") {
					return fmt.Errorf("%s has no rules for endpoint %s", n.Name, e)
				}
			}
			return nil
		})
	}
	time.Sleep(3 * time.Second)
}

// ecmpTable has a row for each incident, and in each cell the results of both families.
func ecmpTable(cells map[string][]string) string {
	var b strings.Builder
	b.WriteString("| |")
	for _, s := range servings {
		b.WriteString(" " + s.title + " |")
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(servings)) + "\n")
	for _, e := range incidents {
		b.WriteString("| " + e.name + " |")
		for i := 0; i+1 < len(cells[e.name]); i += 2 {
			fmt.Fprintf(&b, " %s, %s |", cells[e.name][i], cells[e.name][i+1])
		}
		b.WriteString("\n")
	}
	return b.String()
}
