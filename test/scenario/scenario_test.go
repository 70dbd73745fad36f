package scenario

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/proxy"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// scenario is one file of testdata.
type scenario struct {
	path     string
	archive  *txtar.Archive
	settings settings
	flags    []string
	// leftOut is the reason why the scenario does not apply to kube-proxy, or empty.
	leftOut string
	steps   []*step
	// manifests are the manifests after the last step, by file name.
	manifests map[string][]byte
}

// step is one state of the cluster, with the expected results.
type step struct {
	number int
	// write are new or changed manifests by file name. remove are the names of removed ones.
	write  map[string][]byte
	remove []string
	// faults happen before the step.
	faults []string
	// want is the change of the plan: the file "elements" if the step has one (listed), or else a line of the file plans.
	want   string
	listed bool
	// packets and problems are the contents of the files with these names.
	packets, problems string
	// planned is the plan of the step, without its constant part.
	planned []string
}

// settings are a scenario's command line.
type settings struct {
	plan      plan.Options
	model     model.Options
	nodePorts []netip.Prefix
	// node is the name of the proxy's Node.
	node string
	// unusedPorts is the value of --refuse-unused-ports.
	unusedPorts string
	// stopped, unless zero, is the time at which the proxy's clock stands.
	stopped time.Time
	// distort, if not nil, breaks the proxy: the proxy reads altered objects.
	distort func(proxy.Source) proxy.Source
}

// source returns the source that the proxy reads.
func (s settings) source(real proxy.Source) proxy.Source {
	if s.distort == nil {
		return real
	}
	return s.distort(real)
}

const (
	nodeName           = "node-1"
	masqueradeMark     = 1 << 14
	defaultClusterCIDR = "10.244.0.0/16,fd00:10:244::/56"
)

// common is the path of the manifests with which every scenario starts. commonPlan is the path of their plan. plans, beside the
// scenarios of a folder, has the growth of the plan in each of their steps.
const (
	common     = "testdata/common/cluster.yaml"
	commonPlan = "testdata/common/cluster.want"
	plans      = "plans.want"
)

var stepFile = regexp.MustCompile(`^([0-9]+)\.([a-z0-9.-]+)$`)

func readScenario(path string) (*scenario, error) {
	archive, err := txtar.ParseFile(path)
	if err != nil {
		return nil, err
	}
	shared, err := os.ReadFile(common)
	if err != nil {
		return nil, err
	}
	s := &scenario{path: path, archive: archive, manifests: map[string][]byte{"cluster.yaml": shared}}
	for _, f := range archive.Files {
		switch f.Name {
		case "flags":
			s.flags = strings.Fields(string(f.Data))
			continue
		case "not-for-kube-proxy":
			s.leftOut = strings.TrimSpace(string(f.Data))
			continue
		}
		if err := s.add(f.Name, f.Data); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", path, f.Name, err)
		}
	}
	if len(s.steps) == 0 {
		return nil, fmt.Errorf("%s: there is no step", path)
	}
	if s.settings, err = parseSettings(s.flags); err != nil {
		return nil, fmt.Errorf("%s: flags: %w", path, err)
	}
	if s.steps[0].write["cluster.yaml"] == nil {
		s.steps[0].write["cluster.yaml"] = shared
	}
	lines, err := readPlans(filepath.Dir(path))
	for _, st := range s.steps {
		if !st.listed {
			st.want = lines[s.key(st)]
		}
	}
	return s, err
}

// readPlans returns the lines of the file plans of a folder by their keys. A folder without the file has none.
func readPlans(folder string) (map[string]string, error) {
	lines := map[string]string{}
	text, err := os.ReadFile(filepath.Join(folder, plans))
	if errors.Is(err, fs.ErrNotExist) {
		return lines, nil
	}
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		key, growth, _ := strings.Cut(line, ": ")
		lines[key] = growth
	}
	return lines, err
}

// key returns the beginning of the line of a step in the file plans.
func (s *scenario) key(st *step) string {
	return fmt.Sprintf("%s %d", strings.TrimSuffix(filepath.Base(s.path), ".txtar"), st.number)
}

// add adds one file of a step.
func (s *scenario) add(name string, data []byte) error {
	match := stepFile.FindStringSubmatch(name)
	if match == nil {
		return errors.New("the name is neither \"flags\" nor NUMBER.NAME")
	}
	number, err := strconv.Atoi(match[1])
	if err != nil || number > len(s.steps)+1 || number < len(s.steps) || number == 0 {
		return errors.New("the steps must have the numbers 1, 2, 3 and so on")
	}
	if number > len(s.steps) {
		s.steps = append(s.steps, &step{number: number, write: map[string][]byte{}})
	}
	st := s.steps[number-1]
	switch match[2] {
	case elementsFile:
		st.want, st.listed = string(data), true
	case "packets":
		st.packets = string(data)
	case "problems":
		st.problems = string(data)
	case "faults":
		st.faults = strings.Split(strings.TrimSpace(string(data)), "\n")
		return checkFaults(st.faults)
	case "delete":
		return s.remove(st, strings.Fields(string(data)))
	default:
		return s.write(st, match[2], data)
	}
	return nil
}

// write adds a manifest, endpoints, or patches of a manifest to a step.
func (s *scenario) write(st *step, name string, data []byte) (err error) {
	base, kind := strings.TrimSuffix(name, filepath.Ext(name)), filepath.Ext(name)
	switch {
	case kind == ".yaml":
		data, err = completed(data, base)
	case kind == ".patch":
		name = base + ".yaml"
		data, err = patched(s.manifests[name], data)
	case kind == endpointsFile || name == endpointsFile[1:]:
		name += ".yaml"
		data, err = endpointSlices(data)
	default:
		err = errors.New("not a file that a step can have")
	}
	s.manifests[name], st.write[name] = data, data
	return err
}

// endpointsFile is the extension of files with endpoints. elementsFile has the elements that a step adds to the plan.
const (
	endpointsFile = ".endpoints"
	elementsFile  = "elements"
)

// remove removes the manifests and the endpoints with these names.
func (s *scenario) remove(st *step, names []string) error {
	for _, name := range names {
		before := len(st.remove)
		for _, file := range []string{name + ".yaml", name + endpointsFile + ".yaml"} {
			if s.manifests[file] != nil {
				st.remove = append(st.remove, file)
				delete(s.manifests, file)
			}
		}
		if len(st.remove) == before {
			return fmt.Errorf("there is no manifest %q", name)
		}
	}
	return nil
}

// parseSettings parses flags with kube-proxy's names. Their defaults are those of the lab.
func parseSettings(args []string) (settings, error) {
	s := settings{node: nodeName, plan: plan.Options{Families: inet.Families[:], MasqueradeMark: masqueradeMark}}
	fs := flag.NewFlagSet("flags", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.BoolVar(&s.plan.MasqueradeAll, "masquerade-all", false, "")
	clusterCIDR := fs.String("cluster-cidr", defaultClusterCIDR, "")
	bridge := fs.String("pod-bridge-interface", "", "")
	prefix := fs.String("pod-interface-name-prefix", "", "")
	nodePorts := fs.String("nodeport-addresses", "", "")
	fs.BoolVar(&s.model.IgnoreExternalIPs, "ignore-external-ips", false, "")
	fs.IntVar(&s.plan.Room.Elements, "node-elements", 0, "")
	fs.IntVar(&s.plan.Room.PortRanges, "node-port-ranges", 0, "")
	fs.StringVar(&s.unusedPorts, "refuse-unused-ports", "cluster", "")
	ping := fs.String("answer-ping", "none", "")
	mode := fs.String("proxy-mode", "nftables", "")
	counted := fs.Bool("count-connections", true, "")
	fs.BoolFunc("direct-server-return", "", func(text string) error {
		s.plan.DirectReturn, s.model.DirectDefault = text != "false", text == "all"
		return nil
	})
	nodeCIDRs := fs.String("direct-server-return-node-cidrs", "", "")
	if err := fs.Parse(args); err != nil {
		return s, err
	}
	var err error
	if s.model.UnusedPorts, err = model.ParseUnusedPorts(s.unusedPorts); err != nil {
		return s, err
	}
	if s.plan.NodeNetworks, err = model.ParseNodeNetworks(*nodeCIDRs); err != nil {
		return s, err
	}
	for f, networks := range s.plan.NodeNetworks {
		s.model.DirectNodePorts[f] = len(networks) > 0
	}
	s.model.Ping, s.model.Direct = model.Ping(*ping), s.plan.DirectReturn
	s.plan.RefuseUnused, s.plan.RefuseLoops = s.model.UnusedPorts.Any(), s.model.UnusedPorts.All
	s.plan.AnswerPing, s.plan.RouteUnused, s.plan.Uncounted = s.model.Ping.Answers(), *mode != "nftables", !*counted
	if s.nodePorts, err = parsePrefixes(*nodePorts); err != nil {
		return s, err
	}
	cidrs, err := parsePrefixes(*clusterCIDR)
	for _, p := range cidrs {
		s.plan.LocalPods[inet.FamilyOf(p.Addr())].Prefix = p
	}
	for f := range s.plan.LocalPods {
		if *bridge+*prefix != "" {
			s.plan.LocalPods[f] = plan.LocalPods{Interface: *bridge + *prefix, InterfacePrefix: *prefix != ""}
		}
	}
	for _, p := range s.nodePorts {
		if p.Bits() == 0 {
			s.plan.AnyNodeAddress[inet.FamilyOf(p.Addr())] = true
		}
	}
	return s, err
}

func parsePrefixes(list string) (out []netip.Prefix, err error) {
	for _, s := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' }) {
		p, err := model.ParsePrefix(s)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

// enter updates a folder of manifests from the previous step to this one.
func (st *step) enter(folder string) error {
	for _, name := range st.remove {
		if err := os.Remove(filepath.Join(folder, name)); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(st.write)) {
		if err := os.WriteFile(filepath.Join(folder, name), st.write[name], 0o600); err != nil {
			return err
		}
	}
	return nil
}

// updates are exclusive: scenarios run in parallel.
var updates sync.Mutex

// update writes the change of the plan to the scenario's file, or to the file plans.
func (s *scenario) update(st *step, want string) error {
	updates.Lock()
	defer updates.Unlock()
	if st.listed {
		name := fmt.Sprintf("%d.%s", st.number, elementsFile)
		at := slices.IndexFunc(s.archive.Files, func(f txtar.File) bool { return f.Name == name })
		s.archive.Files[at].Data = []byte(want)
		return os.WriteFile(s.path, txtar.Format(s.archive), 0o644)
	}
	folder := filepath.Dir(s.path)
	lines, err := readPlans(folder)
	if err != nil {
		return err
	}
	delete(lines, s.key(st))
	if want != "" {
		lines[s.key(st)] = want
	}
	text := ""
	for _, key := range slices.Sorted(maps.Keys(lines)) {
		text += key + ": " + lines[key] + "\n"
	}
	return os.WriteFile(filepath.Join(folder, plans), []byte(text), 0o644)
}

func TestReadScenarioRejectsInvalidFiles(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"no step", "only a comment\n", "no step"},
		{"a gap", "-- 2.objects.yaml --\n", "numbers 1, 2, 3"},
		{"a stray file", "-- notes --\n", "NUMBER.NAME"},
		{"a patch of nothing", "-- 1.web.patch --\nspec: {}\n", "no earlier step"},
		{"a patch of another object", "-- 1.cluster.patch --\nkind: Service\n", "changes 0 objects"},
		{"a deletion of nothing", "-- 1.delete --\nweb\n", "no manifest"},
		{"endpoints without ports", "-- 1.endpoints --\nshop/web: pod-0\n", "want NAMESPACE/NAME"},
		{"an unknown attribute", "-- 1.endpoints --\nshop/web 80: pod-0!zone=a\n", "not an attribute"},
		{"a misspelt file", "-- 1.pakcets --\n", "not a file that a step can have"},
		{"an unknown fault", "-- 1.faults --\nnfs mount\n", "not a fault"},
		{"an unknown flag", "-- flags --\n--no-such-flag\n-- 1.packets --\n", "flags"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "x.txtar")
			lab.Must(t, os.WriteFile(path, []byte(tc.text), 0o600))
			if _, err := readScenario(path); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("readScenario() = %v, want an error with %q", err, tc.want)
			}
		})
	}
}
