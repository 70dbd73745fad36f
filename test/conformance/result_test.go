package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// someRun returns a run, with one excluded test whose labels have another order before v1.37.
func someRun(kubernetes, proxy string, nodes int, tests ...Test) Run {
	excluded := "[sig-network] I [Serial] [Slow]"
	if kubernetes < "v1.37" {
		excluded = "[sig-network] I [Slow] [Serial]"
	}
	return Run{
		Kubernetes: kubernetes, Proxy: proxy, ProxyVersion: proxy + " v1", Nodes: nodes, Kernel: "6.1", Minutes: 9, Tests: tests,
		Excluded: []Excluded{{excluded, unusable[0].reason}},
	}
}

func TestRetryKeepsTheFirstFailure(t *testing.T) {
	r := someRun("v1.37.2", kubeProxy, 2, Test{"a", passed, 1, false, ""}, Test{"b", failed, 2, false, "late"}, Test{"c", failed, 3, false, "broken"})
	r.retry([]Test{{"a", passed, 9, false, ""}, {"b", passed, 5, false, ""}, {"c", failed, 6, false, "broken again"}})
	want := []Test{{"a", passed, 1, false, ""}, {"b", passed, 5, true, "late"}, {"c", failed, 3, false, "broken"}}
	lab.Same(t, want, r.Tests, "")
	if err := r.failure(); err == nil || !strings.Contains(err.Error(), "1 tests failed") {
		t.Errorf("failure: %v", err)
	}
}

func TestPublish(t *testing.T) {
	root := t.TempDir()
	lab.Must(t, os.Mkdir(filepath.Join(root, "docs"), 0o755))
	lab.Must(t, os.WriteFile(filepath.Join(root, published.Page), []byte("# x\n<!-- results -->\n<!-- /results -->\n"), 0o600))
	for _, run := range []Run{
		someRun("v1.36.3", kubeProxy, 2), someRun("v1.37.2", kubeNftproxy, 2, Test{"x", failed, 1, false, ""}),
		someRun("v1.37.2", kubeProxy, 6), someRun("v1.37.2", kubeProxy, 2, Test{"[b] a|b", passed, 1, true, "late"}, Test{"s", skipped, 0, false, "3 nodes"}),
		someRun("v1.37.2", kubeNftproxy, 2, Test{"x", passed, 1, false, ""}), // again, in place of the first one
	} {
		lab.Must(t, publish(root, run, false))
	}
	// A part of a run leaves the other results.
	lab.Must(t, publish(root, someRun("v1.37.2", kubeProxy, 2, Test{"s", failed, 1, false, "lost"}), true))
	got, err := os.ReadFile(filepath.Join(root, published.Page))
	lab.Must(t, err)
	want := `# x
<!-- results -->
| Kubernetes | proxy | nodes | passed | failed | skipped | minutes | kernel |
|---|---|---|---|---|---|---|---|
| v1.37.2 | kube-proxy v1 | 2 | 1 | 1 | 0 | 9 | 6.1 |
| v1.37.2 | kube-nftproxy v1 | 2 | 1 | 0 | 0 | 9 | 6.1 |
| v1.37.2 | kube-proxy v1 | 6 | 0 | 0 | 0 | 9 | 6.1 |
| v1.36.3 | kube-proxy v1 | 2 | 0 | 0 | 0 | 9 | 6.1 |

kube-proxy v1 with Kubernetes v1.37.2 on 2 nodes:

- failed: s: lost
- passed when run once more, alone: \[b] a\|b: late

Not run:

| test | reason |
|---|---|
| \[sig-network] I \[Serial] \[Slow] | It needs SCTP sockets, which many kernels lack. |
<!-- /results -->
`
	lab.Same(t, want, string(got), "")
}

// The published tables are those of the published results.
func TestPageHasTheResults(t *testing.T) { published.Check(t, "../..") }
