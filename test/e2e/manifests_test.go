//go:build e2e

package e2e

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// TestADocumentThatCannotBeReadHidesNoOther: packets reach the Services of all other documents, from the start on and after
// changes. The log has a line for each unreadable document, and the metric counts it.
func TestADocumentThatCannotBeReadHidesNoOther(t *testing.T) {
	service := func(n int, pod string) string {
		name := fmt.Sprint("s", n)
		return deskService(n, name, "", "") + fmt.Sprintf(`---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s-1, namespace: default, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
ports: [{name: http, port: %[3]d, protocol: TCP}]
endpoints: [{addresses: [%[2]s], conditions: {ready: true}, nodeName: node-1}]
`, name, pod, backendPort)
	}
	const first, last = "10.244.0.10", "10.244.0.11"
	file := func(pod string) string {
		return deskNode + service(1, pod) + "---\nkind: [Service\n" + service(2, pod) + "  ---\n" + strings.TrimPrefix(service(3, pod), "---\n") +
			"---\napiVersion: v1\nkind: Service\nmetadata: {name: wrong}\nspec: {ports: [{port: eighty}]}\n" + service(4, pod)
	}
	d := newDesk(t, file(first))
	for i, pod := range d.Pods {
		if want := []string{first, last}[i]; pod.IPv4.String() != want {
			t.Fatalf("pod %d has %s, want %s", i, pod.IPv4, want)
		}
		serve(t, inet.TCP, backendPort, pod)
	}
	served := func(by int) {
		t.Helper()
		for n := 1; n <= 4; n++ {
			to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 1, byte(n)}), 80)
			eventually(t, patience, func() error { return reached(t.Context(), d.Remotes[0], inet.TCP, to, d.Pods[by].Name) })
		}
	}
	served(0)
	log := mustRead(t, d.program.Log())
	if n := strings.Count(log, "cannot be read and is left out"); n != 2 {
		t.Errorf("%d log lines, want 2:\n%s", n, log)
	}
	samples, err := d.program.Metrics(t.Context())
	if name := `kubenftproxy_problems_total{kind="File"}`; err != nil || samples[name] != 3 {
		t.Errorf("%s is %v, want 3; %v", name, samples[name], err)
	}
	d.write(file(last))
	served(1)
}
