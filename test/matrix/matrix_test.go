package matrix

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/program"
)

// startTime is the longest time from the start of a program to its first sync.
const startTime = time.Minute

// mostLines is the number of failing cells that are shown.
const mostLines = 50

// TestMatrix runs the program with manifests in each mode, and checks every cell.
func TestMatrix(t *testing.T) {
	skipUpdate(t)
	lab.ForTest(t, lab.Config{}) // skips a test without privileges before the build
	binary := program.BuildForTest(t)
	tried := 0
	report := newReport(t)
	leftOut := 0
	for _, m := range slices.Concat(variedModes(), rangedModes(), vipModes()) {
		t.Run(m.String(), func(t *testing.T) {
			cells, without := groups(m)
			leftOut += without
			l := newLab(t, m)
			start(t, l, binary, append(slices.Concat(m.flags(), m.ownFlags()), "--manifests="+writeManifests(t, m.choice), "--hostname-override=node-1", "--proxy-mode=nftables")...)
			got := newLookout(l).observe(t.Context(), cells)
			tried += len(got)
			for _, g := range cells {
				for _, f := range judge(g, got) {
					report.add(t, f.String())
				}
			}
			report.add(t, strangers(cells, got)...)
		})
	}
	t.Logf("%d cells checked, %d impossible ones skipped, %d failures", tried, leftOut, report.failures)
}

// TestMatrixSeesFaults starts the program in one mode and compares the results with another mode. Exactly the cells in which the two
// modes differ must fail.
func TestMatrixSeesFaults(t *testing.T) {
	skipUpdate(t)
	lab.ForTest(t, lab.Config{})
	binary := program.BuildForTest(t)
	manifests := writeManifests(t, random)
	for name, fault := range map[string]struct{ claimed, real mode }{
		"without masquerade-all": {mode{byClusterCIDR, true, random}, base},
		"without cluster-cidr":   {base, mode{byNothing, false, random}},
		"without NodeCIDR":       {mode{byNodeCIDR, false, random}, base},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, fault.real)
			start(t, l, binary, append(fault.real.flags(), "--manifests="+manifests, "--hostname-override=node-1", "--proxy-mode=nftables")...)
			few := sample(fault.claimed)
			v := newLookout(l)
			got := v.observe(t.Context(), few)
			// If the matrix expects no answer and an answer arrives late, the first pass misses the fault. The second pass waits longer.
			v.nothingIn = patience
			maps.Copy(got, v.observe(t.Context(), slices.DeleteFunc(slices.Clone(few), func(g group) bool {
				return slices.Equal(differing([]group{g}, fault.real), failing(g, got))
			})))
			var faulty []string
			for _, g := range few {
				faulty = append(faulty, failing(g, got)...)
			}
			if diff := cmp.Diff(differing(few, fault.real), faulty); diff != "" || len(faulty) == 0 {
				t.Errorf("%d of %d cells fail (-want +got):\n%s", len(faulty), len(got), diff)
			}
			t.Logf("%d of %d cells fail, as they should", len(faulty), len(got))
		})
	}
}

// sample returns the groups of one protocol and family, without affinity.
func sample(m mode) []group {
	all, _ := groups(m)
	return slices.DeleteFunc(all, func(g group) bool {
		return g[0].service.affinity || g[0].protocol != inet.TCP || g[0].family != inet.IPv4
	})
}

// failing lists the cells of a group with unexpected results.
func failing(g group, seen map[cell]observation) (cells []string) {
	for _, c := range g {
		if len(judge(group{c}, seen)) > 0 {
			cells = append(cells, c.String())
		}
	}
	return cells
}

// differing lists the cells whose expected results differ in another mode.
func differing(groups []group, other mode) (cells []string) {
	for _, g := range groups {
		for _, c := range g {
			there := c
			there.mode = other
			if !slices.Equal(want(c).outcomes(), want(there).outcomes()) {
				cells = append(cells, c.String())
			}
		}
	}
	return cells
}

// start runs a program on the lab's node until the test ends, and returns after its rules are in place.
func start(t *testing.T, l *lab.Lab, path string, flags ...string) {
	t.Helper()
	program.ForTest(t, program.Config{Host: l.Node, Path: path, Args: flags}).Synced(t)
}

// report shows failures up to a limit, and counts the others.
type report struct {
	failures int
}

func newReport(t *testing.T) *report {
	r := &report{}
	t.Cleanup(func() {
		if r.failures > mostLines {
			t.Logf("%d more failures", r.failures-mostLines)
		}
	})
	return r
}

func (r *report) add(t *testing.T, failures ...string) {
	t.Helper()
	for _, line := range failures {
		if r.failures++; r.failures <= mostLines {
			t.Error(line)
		} else {
			t.Fail()
		}
	}
}
