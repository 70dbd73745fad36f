//go:build twin

package matrix

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/twin"
)

// TestTwin runs kube-proxy and the program in each mode, both on the same API server and each in its own lab with the same
// addresses, and compares the results of every cell.
func TestTwin(t *testing.T) {
	lab.ForTest(t, lab.Config{}) // skips a test without privileges before the build
	theirs, ours, err := twin.Build(t.Context(), t.TempDir(), t.Output())
	lab.Must(t, err)
	api, err := twin.Start(t.Context(), t.TempDir(), "node-1")
	lab.Must(t, err)
	t.Cleanup(api.Stop)
	lab.Must(t, api.Set(t.Context(), objects(random)))
	t.Run("faults", func(t *testing.T) {
		cells := sample(base)
		other := mode{byNodeCIDR, false, random}
		seen := observe(t, cells, follow(t, api, theirs, base), follow(t, api, ours, other))
		var failing []string
		for _, g := range cells {
			for _, c := range g {
				if len(compare(group{c}, seen)) > 0 {
					failing = append(failing, c.String())
				}
			}
		}
		if diff := cmp.Diff(differing(cells, other), failing); diff != "" || len(failing) == 0 {
			t.Errorf("failing cells if kube-nftproxy has other flags (-want +got):\n%s", diff)
		}
	})
	report := newReport(t)
	compared := 0
	for _, m := range modes() {
		t.Run(m.String(), func(t *testing.T) {
			cells, _ := groups(m)
			seen := observe(t, cells, follow(t, api, theirs, m), follow(t, api, ours, m))
			for _, g := range cells {
				compared += len(g)
				for _, f := range judge(g, seen[1]) {
					report.add(t, "kube-nftproxy: "+f.String())
				}
				for _, f := range judge(g, seen[0]) {
					if d := covering(f.cell, seen[0]); d != nil {
						d.cells++
					} else {
						report.add(t, "kube-proxy: "+f.String())
					}
				}
				report.add(t, compare(g, seen)...)
			}
		})
	}
	checkDeclared(t)
	t.Logf("%d cells compared, %d failures", compared, report.failures)
}

// declared are the intended differences.
var declared = []*declaredDifference{{
	situation: "A client with affinity is given another endpoint by policy Local",
	covers: func(c cell, theirs map[cell]observation) bool {
		first := c
		first.dest = clusterIP
		return c.dest == clusterIPAgain && slices.Equal(theirs[c], theirs[first])
	},
}}

// declaredDifference is a difference with a row in docs/differences.md.
type declaredDifference struct {
	// situation is the beginning of that row.
	situation string
	// covers reports whether the row describes kube-proxy's result in a cell.
	covers func(c cell, theirs map[cell]observation) bool
	// cells counts the cells with this difference.
	cells int
}

func covering(c cell, theirs map[cell]observation) *declaredDifference {
	for _, d := range declared {
		if d.covers(c, theirs) {
			return d
		}
	}
	return nil
}

// checkDeclared fails for a difference without a row, and for a row that matches no cell.
func checkDeclared(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "differences.md"))
	lab.Must(t, err)
	for _, d := range declared {
		t.Logf("%d cells: %s", d.cells, d.situation)
		if !strings.Contains(string(text), "\n| "+d.situation+" |") {
			t.Errorf("docs/differences.md has no row that begins with %q", d.situation)
		}
		if d.cells == 0 {
			t.Errorf("%s: no cell has this difference", d.situation)
		}
	}
}

// follow runs a program in its own lab, and returns after it has programmed all objects.
func follow(t *testing.T, api *twin.API, path string, m mode) *lookout {
	t.Helper()
	l := newLab(t, m)
	p, err := api.Proxy(twin.Config{Host: l.Node, Path: path, Flags: m.flags()})
	lab.Must(t, err)
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), startTime)
	defer cancel()
	lab.Must(t, api.Settle(ctx, p))
	return newLookout(l)
}

// observe opens the connections of all cells in two labs at the same time.
func observe(t *testing.T, cells []group, theirs, ours *lookout) (seen [2]map[cell]observation) {
	t.Helper()
	var wg sync.WaitGroup
	for i, v := range []*lookout{theirs, ours} {
		wg.Go(func() { seen[i] = v.observe(t.Context(), cells) })
	}
	wg.Wait()
	return seen
}

// compare compares the results of the two programs. With session affinity, each program draws an endpoint at random. So the endpoint
// of either program must be one that the other program uses for a client of a Service without affinity.
func compare(g group, seen [2]map[cell]observation) (failures []string) {
	for _, c := range g {
		theirs, ours := seen[0][c], seen[1][c]
		same := slices.Equal(theirs, ours)
		if c.service.affinity {
			plain := c
			plain.service.affinity = false
			if c.dest == clusterIPAgain {
				plain.dest = clusterIP
			}
			same = len(theirs) == 1 && len(ours) == 1 &&
				slices.Contains(seen[1][plain], theirs[0]) && slices.Contains(seen[0][plain], ours[0])
		}
		if !same {
			failures = append(failures, fmt.Sprintf("%s: kube-proxy %s; kube-nftproxy %s", c, theirs, ours))
		}
	}
	return failures
}
