package scenario

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/kube-nftproxy/kube-nftproxy/test/oracle"
)

// shrinkTime limits the time to shrink a failing history.
const shrinkTime = 2 * time.Minute

// shrinker shrinks a failing history while it fails in the same way.
type shrinker struct {
	*player
	h        *history
	f        *failure
	deadline time.Time
	plays    int
	// path is the path of the scenario, report the full report.
	path, report string
}

// shrunk shrinks a failing history, writes it as a scenario, and returns a report with the path.
func (p *player) shrunk(h *history, f *failure, name string) string {
	return p.shrink(h, f, name).report
}

func (p *player) shrink(h *history, f *failure, name string) *shrinker {
	s := &shrinker{player: p, h: h.clone(), f: f, deadline: time.Now().Add(shrinkTime)}
	s.h.steps = s.h.steps[:f.step+1]
	p.thorough, p.patience, p.until = true, noAnswer, time.Time{}
	defer func() { p.thorough, p.patience = false, patience }()
	again := s.onlyPacket()
	for range 5 {
		again = again || s.fails(s.h)
	}
	if again {
		s.run()
	}
	path, err := s.write(name)
	switch {
	case err != nil:
		s.report = fmt.Sprintf("the scenario could not be written: %v", err)
	case !again:
		s.report = fmt.Sprintf("The failure did not repeat in 5 plays. The history up to the failure is in %s", path)
	default:
		s.report = fmt.Sprintf("After %d plays, %d steps with %d objects remain in %s:\n%s\nMove it to test/scenario/testdata, run\n"+
			"  go test ./test/scenario -run 'Scenarios/%s$' -update\nto write its plan, and again without -update.",
			s.plays, len(s.h.steps), s.h.objects(), path, s.f, name)
	}
	return s
}

// objects returns the number of objects in all steps.
func (h *history) objects() (n int) {
	seen := map[string]bool{}
	for _, m := range h.steps {
		for file, objects := range m.write {
			for _, o := range objects {
				seen[fmt.Sprint(file, o["kind"], o["metadata"].(map[string]any)["name"])] = true
			}
		}
	}
	return len(seen)
}

// fails reports whether a history fails in the same way. If so, it replaces s.h with this history.
func (s *shrinker) fails(h *history) bool {
	s.plays++
	f := s.play(h)
	if f == nil || f.kind != s.f.kind {
		return false
	}
	s.h, s.f = h, f
	s.h.steps = s.h.steps[:f.step+1]
	return true
}

// run tries to remove each part, repeatedly, until no part can be removed.
func (s *shrinker) run() {
	for before := -1; before != s.size() && time.Now().Before(s.deadline); {
		before = s.size()
		s.onlyPacket()
		s.dropSteps()
		s.mergeSteps()
		s.drop(func(m *moment) int { return len(m.packets) }, func(m *moment, i int) { m.packets = slices.Delete(m.packets, i, i+1) })
		s.drop(func(m *moment) int { return len(m.faults) }, func(m *moment, i int) { m.faults = slices.Delete(m.faults, i, i+1) })
		s.drop(func(m *moment) int { return len(m.remove) }, func(m *moment, i int) { m.remove = slices.Delete(m.remove, i, i+1) })
		s.drop(func(m *moment) int { return len(m.write) }, func(m *moment, i int) {
			delete(m.write, slices.Sorted(maps.Keys(m.write))[i])
		})
		s.drop(func(m *moment) int { return map[bool]int{true: 1}[m.hasty] }, func(m *moment, i int) { m.hasty = false })
		s.dropFlags()
		s.dropFields()
	}
}

// size is the number that run reduces.
func (s *shrinker) size() (n int) {
	for _, m := range s.h.steps {
		n += 1000 + len(m.packets) + 100*len(m.faults) + 10*len(m.remove)
		for _, objects := range m.write {
			n += 10 + len(objects.yaml())
		}
	}
	return n + len(s.h.flags)
}

// try changes a copy of the history, and keeps it if it still fails.
func (s *shrinker) try(change func(h *history)) bool {
	if time.Now().After(s.deadline) {
		return false
	}
	h := s.h.clone()
	change(h)
	return s.fails(h)
}

// dropSteps removes halves, then quarters and so on.
func (s *shrinker) dropSteps() {
	for n := len(s.h.steps) / 2; n > 0; n /= 2 {
		for from := 0; from+n < len(s.h.steps); {
			if !s.try(func(h *history) { h.steps = slices.Delete(h.steps, from, from+n) }) {
				from += n
			}
		}
	}
}

// mergeSteps merges two consecutive steps.
func (s *shrinker) mergeSteps() {
	for i := len(s.h.steps) - 2; i >= 0; i-- {
		if i+1 >= len(s.h.steps) {
			continue
		}
		s.try(func(h *history) {
			first, second := h.steps[i], h.steps[i+1]
			for _, file := range second.remove {
				first.delete(file)
			}
			for file, objects := range second.write {
				first.put(file, objects)
			}
			first.faults, first.packets, first.hasty = append(first.faults, second.faults...), second.packets, second.hasty
			h.steps = slices.Delete(h.steps, i+1, i+2)
		})
	}
}

// onlyPacket removes all packets except the failing one.
func (s *shrinker) onlyPacket() bool {
	return s.try(func(h *history) {
		for i, m := range h.steps {
			if i == s.f.step && s.f.packet >= 0 {
				m.packets = m.packets[s.f.packet : s.f.packet+1]
			} else {
				m.packets = nil
			}
		}
	})
}

// drop removes one item after the other, from the last to the first.
func (s *shrinker) drop(count func(*moment) int, without func(*moment, int)) {
	for i := len(s.h.steps) - 1; i >= 0; i-- {
		if i >= len(s.h.steps) {
			continue
		}
		for j := count(s.h.steps[i]) - 1; j >= 0; j-- {
			if i < len(s.h.steps) && j < count(s.h.steps[i]) {
				s.try(func(h *history) { without(h.steps[i], j) })
			}
		}
	}
}

func (s *shrinker) dropFlags() {
	for i := len(s.h.flags) - 1; i >= 0; i-- {
		s.try(func(h *history) { h.flags = slices.Delete(slices.Clone(h.flags), i, i+1) })
	}
}

// dropFields removes objects, then their fields: in all steps at once, or else in one of them.
func (s *shrinker) dropFields() {
	files := map[string]bool{}
	for _, m := range s.h.steps {
		for file := range m.write {
			files[file] = file != "cluster.yaml"
		}
	}
	for _, file := range slices.Sorted(maps.Keys(files)) {
		if !files[file] {
			continue
		}
		tried := map[string]bool{}
		for path := s.nextPath(file, tried); path != nil; path = s.nextPath(file, tried) {
			tried[fmt.Sprint(path)] = true
			everywhere := func(h *history) {
				for i := range h.steps {
					h.without(i, file, path)
				}
			}
			if s.try(everywhere) || len(s.h.steps) == 1 {
				continue
			}
			for i := range s.h.steps {
				if i < len(s.h.steps) && s.h.steps[i].write[file] != nil {
					s.try(func(h *history) { h.without(i, file, path) })
				}
			}
		}
	}
}

// nextPath returns the path of an untried part of a file, or nil.
func (s *shrinker) nextPath(file string, tried map[string]bool) (found []any) {
	for _, m := range s.h.steps {
		list := make([]any, len(m.write[file]))
		for i, object := range m.write[file] {
			list[i] = object
		}
		if found = untried(list, nil, tried); found != nil {
			return found
		}
	}
	return nil
}

// kept are fields without which an object is invalid.
var kept = []string{"apiVersion", "kind", "metadata", "name", "namespace", "spec", "port", "protocol", "addresses", "addressType", "ip", "clusterIPs"}

func untried(value any, path []any, tried map[string]bool) []any {
	if len(path) > 0 && !slices.Contains(kept, fmt.Sprint(path[len(path)-1])) && !tried[fmt.Sprint(path)] {
		return path
	}
	switch value := value.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(value)) {
			if found := untried(value[name], append(slices.Clone(path), name), tried); found != nil {
				return found
			}
		}
	case []any:
		if len(path) > 0 && path[len(path)-1] == "clusterIPs" && len(value) == 1 || len(path) > 0 && path[len(path)-1] == "addresses" {
			return nil
		}
		for i := len(value) - 1; i >= 0; i-- {
			if found := untried(value[i], append(slices.Clone(path), i), tried); found != nil {
				return found
			}
		}
	}
	return nil
}

// without removes a part of a file.
func (h *history) without(step int, file string, path []any) {
	objects, ok := h.steps[step].write[file]
	if !ok {
		return
	}
	list := make([]any, len(objects))
	for i, object := range objects {
		list[i] = object
	}
	list = remove(list, path).([]any)
	var out manifest
	for _, object := range list {
		out = append(out, object.(map[string]any))
	}
	h.steps[step].write[file] = out
}

// remove returns a copy of a value without the part at a path.
func remove(value any, path []any) any {
	switch value := value.(type) {
	case map[string]any:
		name, ok := path[0].(string)
		if _, there := value[name]; !ok || !there {
			return value
		}
		out := maps.Clone(value)
		if len(path) == 1 {
			delete(out, name)
		} else {
			out[name] = remove(value[name], path[1:])
		}
		return out
	case []any:
		i, ok := path[0].(int)
		if !ok || i >= len(value) {
			return value
		}
		out := slices.Clone(value)
		if len(path) == 1 {
			return slices.Delete(out, i, i+1)
		}
		out[i] = remove(value[i], path[1:])
		return out
	}
	return value
}

// recordedStep is the record of a step for a scenario. It lacks the plan, because the plan may be wrong.
type recordedStep struct {
	packets  []string
	problems string
}

// keep records a line of packets.
func (a *performance) keep(l line) {
	step := &a.recorded[len(a.recorded)-1]
	step.packets = append(step.packets, l.text)
}

// note records the reported problems for a scenario.
func (a *performance) note() { a.recorded[len(a.recorded)-1].problems = a.pipeline.reported() }

// pinNames names the servers of clients with session affinity (affinity=NAME in README.md). A line with a name requires that the
// client stays with its server. So if one of a client's servers disappears, the client gets a new name.
type pinNames struct {
	byClient map[string]pinName
	given    int
}

type pinName struct {
	name    string
	servers []server
}

func (n *pinNames) pinned(l line, v oracle.Verdict, from netip.Addr) line {
	client := fmt.Sprint(v.Port, from)
	known, ok := n.byClient[client]
	for _, s := range known.servers {
		ok = ok && slices.Contains(l.servers, s)
	}
	if !ok {
		n.given++
		known = pinName{name: fmt.Sprintf("client-%d", n.given), servers: l.servers}
		if n.byClient == nil {
			n.byClient = map[string]pinName{}
		}
		n.byClient[client] = known
	}
	if len(l.servers) > 0 {
		l.text += " affinity=" + known.name
	}
	return l
}

func (n *pinNames) forget() { clear(n.byClient) }

// write writes the history as a scenario.
func (s *shrinker) write(name string) (string, error) {
	text := fmt.Sprintf("Found by a random history, which failed so:\n%s\n", s.f)
	archive := &txtar.Archive{Comment: []byte(strings.ReplaceAll(text, "\n-- ", "\n - "))}
	add := func(name, text string) {
		if text != "" {
			archive.Files = append(archive.Files, txtar.File{Name: name, Data: []byte(strings.TrimSuffix(text, "\n") + "\n")})
		}
	}
	add("flags", strings.Join(s.h.flags, " "))
	switch {
	case slices.ContainsFunc(s.h.steps, func(m *moment) bool { return len(m.faults) > 0 || m.hasty }):
		add("not-for-kube-proxy", "Other programs change the tables, or the program restarts between the steps.")
	case slices.ContainsFunc(s.h.steps, (*moment).writesPods):
		add("not-for-kube-proxy", "kube-proxy does not serve host ports: the CNI plugin portmap does.")
	}
	s.play(s.h)
	recorded := s.lastPlay
	there := map[string]bool{"cluster.yaml": true}
	for i, m := range s.h.steps {
		n := i + 1
		for _, file := range slices.Sorted(maps.Keys(m.write)) {
			add(fmt.Sprintf("%d.%s", n, file), m.write[file].yaml())
			there[file] = true
		}
		gone := slices.DeleteFunc(slices.Clone(m.remove), func(file string) bool { return !there[file] })
		for i, file := range gone {
			there[file] = false
			gone[i] = strings.TrimSuffix(file, ".yaml")
		}
		add(fmt.Sprintf("%d.delete", n), strings.Join(gone, "\n"))
		faults := m.faults
		if m.hasty {
			faults = append(slices.Clone(faults), haste)
		}
		add(fmt.Sprintf("%d.faults", n), strings.Join(faults, "\n"))
		if i < len(recorded) {
			add(fmt.Sprintf("%d.packets", n), strings.Join(recorded[i].packets, "\n"))
			add(fmt.Sprintf("%d.problems", n), recorded[i].problems)
		}
	}
	path := filepath.Join(cmp.Or(s.folder, os.Getenv("HISTORY_FOLDER"), filepath.Join(os.TempDir(), "kube-nftproxy-histories")), name+".txtar")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	s.path = path
	return path, os.WriteFile(path, txtar.Format(archive), 0o644)
}
