package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

const listing = `The following spec names can be used with 'ginkgo run --focus/skip':
    k8s.io/kubernetes@v1.37.2/test/e2e/apps/daemon.go:1: [sig-apps] Daemon set should run
    k8s.io/kubernetes@v1.37.2/test/e2e/network/service.go:2: [sig-network] Services should serve a basic endpoint from pods [Conformance]
    k8s.io/kubernetes@v1.37.2/test/e2e/network/service.go:3: [sig-network] Services should work after restarting apiserver [Disruptive]
    k8s.io/kubernetes@v1.37.2/test/e2e/network/service.go:4: [sig-network] Services should work after restarting kube-proxy [Disruptive]
    k8s.io/kubernetes@v1.36.3/test/e2e/network/dns.go:5: [sig-network] DNS should provide DNS for the cluster [Provider:GCE]
    k8s.io/kubernetes@v1.37.2/test/e2e/network/netpol.go:5: [sig-network] Netpol should deny
    k8s.io/kubernetes@v1.37.2/test/e2e/network/traffic_distribution.go:6: [sig-network] Traffic Distribution should route (a|b)
    k8s.io/kubernetes@v1.37.2/test/e2e/network/networking.go:7: [sig-network] Networking IPerf2 [Feature:Networking-Performance] should run iperf2
`

func TestChoose(t *testing.T) {
	const basic, restart, spread = "[sig-network] Services should serve a basic endpoint from pods [Conformance]",
		"[sig-network] Services should work after restarting kube-proxy [Disruptive]", "[sig-network] Traffic Distribution should route (a|b)"
	for _, tt := range []struct {
		name  string
		nodes int
		focus string
		want  []string
		left  int
	}{
		{"two nodes", 2, "", []string{basic, restart, spread}, 3},
		{"six nodes: only what needs them", 6, "", []string{spread}, 0},
		{"six nodes with a focus", 6, "Services", []string{basic, restart}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, left, err := choose(listing, tt.nodes, regexp.MustCompile(tt.focus))
			if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
				t.Errorf("error %v; chosen (-want +got):\n%s", err, diff)
			}
			if len(left) != tt.left {
				t.Errorf("left out: %v, want %d", left, tt.left)
			}
			for _, x := range left {
				if x.Reason == "" {
					t.Errorf("%s: no reason", x.Name)
				}
			}
		})
	}
	if got, _, err := choose(listing, 2, regexp.MustCompile("nothing")); err == nil {
		t.Errorf("chosen %v for a focus that matches nothing, want an error", got)
	}
}

// ginkgo matches a focus with the suite's name and the test's.
func TestPatternMatchesNamesOnly(t *testing.T) {
	focus := regexp.MustCompile(pattern([]string{"[sig-network] A should (b|c)", "[sig-network] D"}))
	for text, want := range map[string]bool{
		"Kubernetes e2e suite [sig-network] A should (b|c)": true, "Kubernetes e2e suite [sig-network] D": true,
		"Kubernetes e2e suite [sig-network] D too": false, "Kubernetes e2e suite [sig-network] A should b": false,
	} {
		if got := focus.MatchString(text); got != want {
			t.Errorf("%q: matched %t, want %t", text, got, want)
		}
	}
}

const report = `[{"SpecReports": [
  {"LeafNodeType": "SynchronizedBeforeSuite", "State": "passed"},
  {"LeafNodeType": "It", "LeafNodeText": "b", "ContainerHierarchyTexts": ["[sig-network] A"], "State": "passed", "RunTime": 2600000000},
  {"LeafNodeType": "It", "LeafNodeText": "not chosen", "ContainerHierarchyTexts": ["[sig-network] A"], "State": "skipped"},
  {"LeafNodeType": "It", "LeafNodeText": "a", "ContainerHierarchyTexts": ["[sig-network] A"], "State": "timedout", "Failure": {"Message": "a\n  pod\tis late"}},
  {"LeafNodeType": "It", "LeafNodeText": "c", "ContainerHierarchyTexts": ["[sig-network]", "A"], "State": "skipped", "Failure": {"Message": "needs 3 nodes"}}
]}]`

func TestReadReport(t *testing.T) {
	got, err := readReport([]byte(report))
	want := []Test{
		{Name: "[sig-network] A a", Status: failed, Message: "a pod is late"}, {Name: "[sig-network] A b", Status: passed, Seconds: 3},
		{Name: "[sig-network] A c", Status: skipped, Message: "needs 3 nodes"},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
	if lost := missing([]string{"[sig-network] A a", "[sig-network] A d"}, got); cmp.Diff([]string{"[sig-network] A d"}, lost) != "" {
		t.Errorf("missing: %v", lost)
	}
	// Where the suite itself fails, no test counts.
	broken := strings.Replace(report, `"SynchronizedBeforeSuite", "State": "passed"`, `"SynchronizedBeforeSuite", "State": "failed", "Failure": {"Message": "no node"}`, 1)
	if got, err := readReport([]byte(broken)); err == nil || !strings.Contains(err.Error(), "no node") {
		t.Errorf("a failed suite: %v, %v; want an error with its message", got, err)
	}
}

func TestSortImages(t *testing.T) {
	got := sortImages([]string{"r/e2e-test-images/agnhost:2.66.1", "r/e2e-test-images/agnhost:2.55", "r/e2e-test-images/busybox:1.37.0-2", "r/e2e-test-images/perl:5.26", "r/pause:3.10.2"})
	lab.Same(t, []string{"r/e2e-test-images/agnhost:2.66.1", "r/e2e-test-images/agnhost:2.55"}, got["agnhost.tar"].names, "agnhost")
	lab.Same(t, []string{shellImage, "r/e2e-test-images/busybox:1.37.0-2"}, got["shells.tar"].names, "shells")
	lab.Same(t, []string{pauseImage, "r/pause:3.10.2"}, got["pause.tar"].names, "pause")
	if names := got["regression.tar"].names; len(names) > 0 {
		t.Errorf("regression: %v, want none", names)
	}
}
