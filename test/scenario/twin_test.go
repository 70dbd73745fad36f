//go:build twin

package scenario

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/twin"
)

// side is one of the two programs and its lab.
type side struct {
	lab  *lab.Lab
	path string
	// theirs is set for kube-proxy, for which a line may have another result.
	theirs bool

	// The fields below belong to the running scenario.
	proxy   *twin.Proxy
	traffic *traffic
}

// TestTwin sends every scenario's packets through the rules of the original kube-proxy and of the program, both on one API
// server.
func TestTwin(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("find scenarios: %v, %d files", err, len(paths))
	}
	theirs, ours, err := twin.Build(t.Context(), t.TempDir(), os.Stderr)
	lab.Must(t, err)
	sides := []*side{{lab: newLab(t), path: theirs, theirs: true}, {lab: newLab(t), path: ours}}
	api, err := twin.Start(t.Context(), t.TempDir(), nodeName)
	lab.Must(t, err)
	t.Cleanup(api.Stop)
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			s, err := readScenario(path)
			lab.Must(t, err)
			runTwin(t, api, s, sides)
		})
	}
}

// TestMatrixTwin does the same with the packets of the matrix, in each mode that kube-proxy has.
func TestMatrixTwin(t *testing.T) {
	theirs, ours, err := twin.Build(t.Context(), t.TempDir(), os.Stderr)
	lab.Must(t, err)
	api, err := twin.Start(t.Context(), t.TempDir(), nodeName)
	lab.Must(t, err)
	t.Cleanup(api.Stop)
	for _, m := range modes() {
		t.Run(strings.Join(m.kubeProxyFlags(), " "), func(t *testing.T) {
			sides := []*side{{lab: newMatrixLab(t, m), path: theirs, theirs: true}, {lab: newMatrixLab(t, m), path: ours}}
			runTwin(t, api, m.scenario(t, sides[0].lab), sides)
		})
	}
}

// scenario returns a scenario with the objects and packets of the matrix, and with the oracle's outcomes.
func (m mode) scenario(t *testing.T, l *lab.Lab) *scenario {
	t.Helper()
	text, err := os.ReadFile(common)
	lab.Must(t, err)
	st := &step{number: 1, write: map[string][]byte{"cluster.yaml": text}}
	a := &performance{player: newPlayer(l), traffic: &traffic{lab: l}, files: map[string][]runtime.Object{}}
	a.settings, err = parseSettings(m.kubeProxyFlags())
	lab.Must(t, err)
	for name, objects := range m.objects() {
		st.write[name] = []byte(objects.yaml())
	}
	for name, text := range st.write {
		a.files[name], err = readObjects(string(text))
		lab.Must(t, err)
	}
	truth := a.oracle()
	for _, c := range m.cells() {
		q := c.question()
		p, _ := a.packet(q)
		v := truth.Ask(p)
		if l, ok := a.lineOf(q, p, v); ok && v.Affinity > 0 && l.outcome == lab.Answered {
			st.packets += l.text + " affinity\n"
		} else if ok {
			st.packets += l.text + "\n"
		}
	}
	return &scenario{flags: m.kubeProxyFlags(), settings: a.settings, steps: []*step{st}}
}

// runTwin runs both programs through all steps of a scenario, and then restarts them. It runs nothing if kube-proxy
// cannot be compared.
func runTwin(t *testing.T, api *twin.API, s *scenario, sides []*side) {
	if s.leftOut != "" {
		t.Logf("not on kube-proxy: %s", s.leftOut)
		return
	}
	sides = slices.DeleteFunc(slices.Clone(sides), func(side *side) bool { return !side.start(t, api, s) })
	folder := objectFiles{}
	for _, st := range s.steps {
		if err := folder.enter(st); err != nil {
			t.Fatalf("step %d: %v", st.number, err)
		}
		stepTwin(t, api, st, folder, sides)
	}
	restartTwin(t, api, s.steps[len(s.steps)-1], sides)
}

// start prepares a side's program with the scenario's flags, and cleans up at the end. It returns false if the scenario does not
// apply to the program.
func (s *side) start(t *testing.T, api *twin.API, sc *scenario) bool {
	t.Helper()
	if !s.theirs && slices.Contains(sc.flags, "--ignore-external-ips") {
		if err := exec.Command(s.path, featureGate, "--version").Run(); err != nil {
			t.Logf("not on %s: it doesn't know %s: %v", filepath.Base(s.path), featureGate, err)
			return false
		}
	}
	var err error
	s.traffic = &traffic{lab: s.lab, pins: map[string]string{}}
	s.proxy, err = api.Proxy(twin.Config{Host: s.lab.Node, Path: s.path, Flags: kubeProxyFlags(sc.flags)})
	lab.Must(t, err)
	t.Cleanup(func() {
		for what, err := range map[string]error{
			"stop": s.proxy.Close(), "close connections": s.traffic.close(), "forget flows": s.lab.Node.Do(flushConntrack),
		} {
			lab.Check(t, err, "%s: %s", s.proxy, what)
		}
	})
	return true
}

const featureGate = "--feature-gates=AllowServiceExternalIPs=false"

// kubeProxyFlags returns kube-proxy's flags for a scenario's flags. An empty --cluster-cidr stands for a missing one.
func kubeProxyFlags(flags []string) []string {
	out := []string{"--cluster-cidr=" + defaultClusterCIDR}
	for _, flag := range flags {
		switch name, value, _ := strings.Cut(flag, "="); name {
		case "--ignore-external-ips":
			flag = featureGate
		case "--cluster-cidr":
			out = out[1:]
			if value == "" {
				continue
			}
		case "--pod-bridge-interface":
			out = append(out, "--detect-local-mode=BridgeInterface")
		case "--pod-interface-name-prefix":
			out = append(out, "--detect-local-mode=InterfaceNamePrefix")
		}
		out = append(out, flag)
	}
	return out
}

// stepTwin programs the step's objects on both sides, and sends the packets on both.
func stepTwin(t *testing.T, api *twin.API, st *step, folder objectFiles, sides []*side) {
	t.Helper()
	where := fmt.Sprintf("step %d", st.number)
	for _, s := range sides {
		if err := s.lab.Node.Do(forgetDatagrams); err != nil {
			t.Fatalf("%s: %v", where, err)
		}
	}
	if err := api.Set(t.Context(), folder.objects()); err != nil {
		t.Fatalf("%s: %v", where, err)
	}
	settle(t, api, where, sides)
	sendAll(t, st, where, sides, func(s *side, l *line) *line {
		if s.theirs && l.theirs != nil {
			l = l.theirs
		}
		return l
	})
}

// restartTwin kills both programs and restarts them: connections continue, clients with session affinity stay with their servers,
// and packets have the same results. It excludes lines that depend on earlier ones. For kube-proxy, it also excludes lines with another
// result: some of these differences disappear with a restart.
func restartTwin(t *testing.T, api *twin.API, last *step, sides []*side) {
	t.Helper()
	const where = "after a restart"
	ctx, cancel := context.WithTimeout(t.Context(), settlingPatience)
	defer cancel()
	for _, s := range sides {
		if err := errors.Join(s.lab.Node.Do(forgetDatagrams), s.proxy.Restart(ctx)); err != nil {
			t.Fatalf("%s: %v", where, err)
		}
	}
	settle(t, api, where, sides)
	sendAll(t, last, where, sides, func(s *side, l *line) *line {
		if l.stays || l.flow != "" || l.affinity && l.pin == "" || s.theirs && l.theirs != nil {
			return nil
		}
		return l
	})
}

// settlingPatience is the timeout for programming a step. This takes about 100 ms, or some seconds for kube-proxy after a restart.
const settlingPatience = 40 * time.Second

func settle(t *testing.T, api *twin.API, where string, sides []*side) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), settlingPatience)
	defer cancel()
	var proxies []*twin.Proxy
	for _, s := range sides {
		proxies = append(proxies, s.proxy)
	}
	if err := api.Settle(ctx, proxies...); err != nil {
		t.Fatalf("%s: %v", where, err)
	}
}

// sendAll sends on each side, concurrently, the packets of the lines that choose returns. It skips a line for which choose
// returns nil.
func sendAll(t *testing.T, st *step, where string, sides []*side, choose func(*side, *line) *line) {
	t.Helper()
	lines, err := parsePackets(st.packets)
	if err != nil {
		t.Fatalf("%s: packets: %v", where, err)
	}
	var sending sync.WaitGroup
	for _, s := range sides {
		var chosen []line
		for i := range lines {
			if l := choose(s, &lines[i]); l != nil && !l.any {
				chosen = append(chosen, *l)
			}
		}
		sending.Go(func() {
			for _, err := range s.traffic.run(t.Context(), chosen) {
				t.Errorf("%s: %s: %v", where, s.proxy, err)
			}
		})
	}
	sending.Wait()
}

// objectFiles are the decoded files of a folder. A file that cannot be decoded keeps its earlier content.
type objectFiles map[string][]runtime.Object

func (m objectFiles) enter(st *step) error {
	for _, name := range st.remove {
		delete(m, name)
	}
	for name, text := range st.write {
		objects, err := twin.Decode(text)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		m[name] = objects
	}
	return nil
}

func (m objectFiles) objects() (all []runtime.Object) {
	var names []string
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		all = append(all, m[name]...)
	}
	return all
}

// TestTwinMarksNameADifference: every line with another result for kube-proxy names a row of docs/differences.md.
func TestTwinMarksNameADifference(t *testing.T) {
	table, err := os.ReadFile("../../docs/differences.md")
	lab.Must(t, err)
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("find scenarios: %v, %d files", err, len(paths))
	}
	named := map[string]string{}
	for _, path := range paths {
		s, err := readScenario(path)
		lab.Must(t, err)
		for _, st := range s.steps {
			lines, err := parsePackets(st.packets)
			if err != nil {
				t.Fatalf("%s: step %d: %v", path, st.number, err)
			}
			for _, l := range lines {
				if l.theirs != nil {
					named[l.why] = fmt.Sprintf("%s: step %d: %s", path, st.number, l.text)
				}
			}
		}
	}
	if len(named) == 0 {
		t.Error("no line has a mark")
	}
	for why, where := range named {
		if !strings.Contains(string(table), "\n| "+why+" |") {
			t.Errorf("%s: docs/differences.md has no row %q", where, why)
		}
	}
}
