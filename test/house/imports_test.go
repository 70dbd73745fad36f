package house

import (
	"go/ast"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// pipeline lists, for each package, the packages that it may import: earlier ones, or those with the values that it receives. The
// console imports the packages whose data it reads, and only the daemon imports nearly all. Only the program imports the daemon.
var pipeline = map[string][]string{
	"pkg/inet":             {},
	"pkg/outcome":          {},
	"pkg/balance":          {},
	"pkg/printable":        {},
	"pkg/model":            {"pkg/balance", "pkg/inet", "pkg/printable"},
	"pkg/netlink":          {},
	"pkg/nft":              {"pkg/inet", "pkg/netlink"},
	"pkg/nft/read":         {"pkg/inet", "pkg/netlink", "pkg/nft"},
	"pkg/track":            {},
	"pkg/room":             {},
	"pkg/kubeapi":          {},
	"pkg/instance":         {},
	"pkg/watch":            {"pkg/kubeapi", "pkg/model", "pkg/track", "pkg/watch/snapshot"},
	"pkg/watch/snapshot":   {"pkg/kubeapi"},
	"pkg/watch/manifests":  {"pkg/kubeapi", "pkg/model", "pkg/track", "pkg/watch"},
	"pkg/plan":             {"pkg/balance", "pkg/inet", "pkg/model", "pkg/nft", "pkg/outcome", "pkg/room"},
	"pkg/probe":            {"pkg/inet", "pkg/nft"},
	"pkg/apply":            {"pkg/inet", "pkg/model", "pkg/nft", "pkg/plan", "pkg/probe"},
	"pkg/beside":           {"pkg/apply", "pkg/model", "pkg/nft"},
	"pkg/beside/conntrack": {"pkg/apply", "pkg/beside", "pkg/inet", "pkg/model", "pkg/netlink", "pkg/plan", "pkg/room"},
	"pkg/beside/counters":  {"pkg/inet", "pkg/model", "pkg/nft", "pkg/outcome", "pkg/plan"},
	"pkg/beside/nodeport":  {"pkg/beside", "pkg/inet", "pkg/model"},
	"pkg/beside/loopback":  {"pkg/beside", "pkg/beside/descriptors", "pkg/inet", "pkg/model", "pkg/nft", "pkg/room"},
	"pkg/beside/demand":    {"pkg/beside", "pkg/nft", "pkg/plan"},
	"pkg/beside/affinity":  {"pkg/beside", "pkg/inet", "pkg/model", "pkg/nft", "pkg/plan", "pkg/room"},
	"pkg/beside/report":    {"pkg/beside", "pkg/kubeapi", "pkg/model", "pkg/room"},
	"pkg/host":             {"pkg/inet"},
	"pkg/config":           {"pkg/balance", "pkg/inet", "pkg/model"},
	"pkg/inspect/command": {
		"pkg/apply", "pkg/inspect/compare", "pkg/config", "pkg/beside/conntrack", "pkg/inspect/control", "pkg/inspect/doctor", "pkg/host", "pkg/inet", "pkg/model", "pkg/nft", "pkg/nft/read", "pkg/plan", "pkg/probe", "pkg/settings",
		"pkg/inspect/trace", "pkg/track", "pkg/inspect/usage", "pkg/view", "pkg/watch", "pkg/watch/manifests",
	},
	"pkg/beside/metrics": {
		"pkg/apply", "pkg/beside", "pkg/beside/affinity", "pkg/beside/counters", "pkg/inet", "pkg/nft", "pkg/outcome", "pkg/plan", "pkg/track",
	},
	"pkg/settings":           {"pkg/config", "pkg/host", "pkg/inet", "pkg/model", "pkg/plan", "pkg/proxy"},
	"pkg/inspect/statuspage": {"pkg/view"},
	"pkg/inspect/compare":    {"pkg/inet", "pkg/nft", "pkg/nft/read", "pkg/plan", "pkg/view"},
	"pkg/inspect/zpages":     {},
	"pkg/view":               {"pkg/outcome", "pkg/printable"},
	"pkg/inspect/usage":      {},
	"pkg/inspect/plugin":     {"pkg/inspect/usage", "pkg/view"},
	"pkg/inspect/control":    {"pkg/beside/health"},
	"pkg/inspect/doctor":     {"pkg/host", "pkg/inet", "pkg/instance", "pkg/model", "pkg/nft", "pkg/nft/read", "pkg/beside/nodeport", "pkg/probe", "pkg/beside/takeover", "pkg/view"},
	"pkg/beside/health":      {"pkg/beside", "pkg/beside/descriptors", "pkg/inet", "pkg/model"},
	"pkg/beside/descriptors": {"pkg/model", "pkg/room"},
	"pkg/beside/takeover":    {"pkg/apply", "pkg/beside", "pkg/inet", "pkg/model", "pkg/netlink", "pkg/nft", "pkg/nft/read"},
	"pkg/inspect/trace":      {"pkg/balance", "pkg/inet", "pkg/nft", "pkg/nft/read", "pkg/outcome", "pkg/plan", "pkg/view"},
	"pkg/proxy": {
		"pkg/apply", "pkg/beside", "pkg/beside/health", "pkg/inet", "pkg/beside/metrics", "pkg/model", "pkg/nft",
		"pkg/plan", "pkg/track", "pkg/view",
	},
	"pkg/inspect/console": {
		"pkg/apply", "pkg/beside",
		"pkg/balance", "pkg/inspect/compare", "pkg/config", "pkg/beside/conntrack", "pkg/inspect/control", "pkg/beside/affinity", "pkg/beside/counters", "pkg/beside/descriptors", "pkg/inspect/doctor", "pkg/beside/health", "pkg/host", "pkg/inet", "pkg/kubeapi", "pkg/beside/loopback", "pkg/model", "pkg/nft", "pkg/nft/read", "pkg/plan",
		"pkg/outcome",
		"pkg/probe", "pkg/proxy", "pkg/settings", "pkg/inspect/statuspage", "pkg/beside/takeover", "pkg/track", "pkg/view",
	},
	"pkg/daemon": {
		"pkg/apply", "pkg/beside",
		"pkg/config", "pkg/beside/affinity", "pkg/beside/conntrack", "pkg/inspect/console", "pkg/inspect/control", "pkg/beside/counters", "pkg/beside/demand", "pkg/beside/descriptors", "pkg/beside/health", "pkg/host", "pkg/inet", "pkg/instance", "pkg/kubeapi", "pkg/beside/loopback", "pkg/beside/metrics", "pkg/model",
		"pkg/nft", "pkg/beside/nodeport", "pkg/plan", "pkg/probe", "pkg/proxy", "pkg/beside/report", "pkg/settings", "pkg/inspect/statuspage", "pkg/beside/takeover", "pkg/track",
		"pkg/view", "pkg/watch", "pkg/watch/manifests", "pkg/inspect/zpages",
	},
	"cmd/kube-nftproxy":    {"pkg/inspect/command", "pkg/daemon"},
	"cmd/kubectl-nftproxy": {"pkg/inspect/plugin"},
}

// pure lists the packages without a clock, a log or a system. nft has a file for its listener, which needs the system.
var pure = []string{
	"pkg/balance", "pkg/inet", "pkg/model", "pkg/nft", "pkg/outcome", "pkg/plan", "pkg/room", "pkg/track",
}

var impure = []string{"k8s.io/klog", "k8s.io/client-go", "log", "log/slog", "net/http", "os", "os/exec", "os/signal"}

var systemFiles = []string{"pkg/nft/listen.go"}

// clock lists functions that read the time or wait for it.
var clock = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}

// apiTypes lists the packages that use the types of the Kubernetes API.
var apiTypes = []string{"pkg/kubeapi", "pkg/watch", "pkg/watch/manifests", "pkg/model", "pkg/proxy", "pkg/beside/health", "pkg/beside/report", "pkg/inspect/console"}

func TestImportsFollowThePipeline(t *testing.T) {
	for _, s := range sources(t) {
		if !s.program() {
			continue
		}
		allowed, known := pipeline[s.dir]
		if !known {
			t.Errorf("%s: package is not in the table of this test", s.name)
			continue
		}
		for _, imported := range imports(t, s) {
			if ours, ok := strings.CutPrefix(imported, module); ok && !slices.Contains(allowed, ours) {
				t.Errorf("%s: must not import %s", s.name, ours)
			}
		}
	}
}

// TestTheProgramHasFewAPIGroups: a library that imports client-go's Clientset adds the types of all groups to the memory of each node.
func TestTheProgramHasFewAPIGroups(t *testing.T) {
	command := exec.CommandContext(t.Context(), "go", "list", "-deps", "./cmd/kube-nftproxy")
	command.Dir = "../.."
	out, err := command.Output()
	lab.Must(t, err)
	var groups []string
	for p := range strings.FieldsSeq(string(out)) {
		if group, ok := strings.CutPrefix(p, "k8s.io/api/"); ok {
			groups = append(groups, group)
		}
	}
	slices.Sort(groups)
	lab.Same(t, []string{"authentication/v1", "core/v1", "discovery/v1", "events/v1", "networking/v1"}, groups, "API groups of the program")
}

func TestPurePackagesStayPure(t *testing.T) {
	for _, s := range sources(t) {
		if !s.program() || !slices.Contains(pure, s.dir) || slices.Contains(systemFiles, s.name) {
			continue
		}
		for _, imported := range imports(t, s) {
			if under(imported, impure) {
				t.Errorf("%s: must not import %s", s.name, imported)
			}
		}
		ast.Inspect(s.File, func(n ast.Node) bool {
			if pkg, name, found := strings.Cut(selector(n), "."); found && pkg == "time" && slices.Contains(clock, name) {
				t.Errorf("%s: must not use the clock (time.%s)", s.at(n), name)
			}
			return true
		})
	}
}

func TestAPITypesStayAtTheEdge(t *testing.T) {
	for _, s := range sources(t) {
		for _, imported := range imports(t, s) {
			if s.program() && under(imported, []string{"k8s.io/api"}) && !slices.Contains(apiTypes, s.dir) {
				t.Errorf("%s: must not import %s", s.name, imported)
			}
		}
	}
}

// TestAddressesAreNetip permits the package net only for connections.
func TestAddressesAreNetip(t *testing.T) {
	for _, s := range sources(t) {
		if !s.program() {
			continue
		}
		ast.Inspect(s.File, func(n ast.Node) bool {
			switch name := selector(n); name {
			case "net.IP", "net.IPNet", "net.IPMask", "net.ParseIP", "net.ParseCIDR":
				t.Errorf("%s: use netip instead of %s", s.at(n), name)
			}
			return true
		})
	}
}

// TestNoOtherTestingFrameworks keeps tests in one style.
func TestNoOtherTestingFrameworks(t *testing.T) {
	frameworks := []string{"github.com/stretchr/testify", "github.com/onsi/ginkgo", "github.com/onsi/gomega", "go.uber.org/mock"}
	for _, s := range sources(t) {
		for _, imported := range imports(t, s) {
			if under(imported, frameworks) {
				t.Errorf("%s: must not import %s", s.name, imported)
			}
		}
	}
}

// under reports whether an import path is one of the given ones, or below one.
func under(imported string, paths []string) bool {
	return slices.ContainsFunc(paths, func(p string) bool { return imported == p || strings.HasPrefix(imported, p+"/") })
}

func imports(t *testing.T, s source) []string {
	t.Helper()
	var out []string
	for _, i := range s.Imports {
		name, err := strconv.Unquote(i.Path.Value)
		lab.Must(t, err)
		out = append(out, name)
	}
	return out
}
