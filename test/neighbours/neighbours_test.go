//go:build neighbours

package neighbours

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/host"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/program"
)

// neighbour is a program that changes the rules of a node.
type neighbour struct {
	name string
	// version is a command that prints the version, alone.
	version string
	// set and broken are as in Row. policy and limit describe held and passed.
	set    string
	broken []string
	policy string
	limit  string
	// prepare runs once, before everything.
	prepare func(n *node)
	// install starts the neighbour, with the setting if configured is true. remove ends it.
	install func(n *node, configured bool)
	reload  func(n *node)
	remove  func(n *node)
	// allowed and denied are packets that the neighbour lets through and drops, with or without kube-nftproxy. services are more checks that
	// need both programs.
	allowed, denied, services func(n *node) []check
	// without are checks of kube-nftproxy before the installation and after the removal of the neighbour.
	without func(n *node) []check
	// through are checks of services whose connections count during a reload and a restart.
	through func(n *node) []check
	// lossless lists the steps without failed connections.
	lossless []string
	// leaves is true if the neighbour leaves rules after its removal.
	leaves bool
}

func none(*node) []check { return nil }

// TestNeighbours runs each neighbour in both orders of installation.
func TestNeighbours(t *testing.T) {
	path := program.BuildForTest(t)
	var rows []Row
	for i, nb := range slices.Concat(firewalls, networks()) {
		for _, f := range []*func(*node) []check{&nb.allowed, &nb.denied, &nb.services, &nb.through, &nb.without} {
			if *f == nil {
				*f = none
			}
		}
		t.Run(nb.name, func(t *testing.T) {
			row := Row{Name: nb.name, Order: i, Set: nb.set, Policy: nb.policy, Limit: nb.limit, Kernel: host.Release()}
			if nb.set != "" {
				t.Run("as installed", func(t *testing.T) { row.Broken, row.Unset = nb.asInstalled(t, path) })
			}
			for _, first := range []bool{true, false} {
				name := "the neighbour first"
				if first {
					name = "kube-nftproxy first"
				}
				t.Run(name, func(t *testing.T) { nb.together(t, path, first, &row) })
			}
			if !t.Failed() {
				rows = append(rows, row)
			}
		})
	}
	if root := os.Getenv("OUTPUT"); root != "" {
		if err := publish(root, rows); err != nil {
			t.Error(err)
		}
	}
}

// asInstalled proves that the checks in broken fail without the setting, and no others. If none fails, it reloads the neighbour under traffic.
func (nb neighbour) asInstalled(t *testing.T, path string) (got []string, unset *Step) {
	n := newNode(t, path)
	if nb.prepare != nil {
		nb.prepare(n)
	}
	n.start()
	nb.install(n, false)
	got = n.failing(append(n.services(), nb.services(n)...))
	want := slices.Sorted(slices.Values(nb.broken))
	lab.Same(t, want, got, "without the setting, these checks fail")
	if len(got) == 0 {
		s := n.during(nil, func() { nb.reload(n) })
		s.Name, s.First = stepReload, true
		n.must("after the reload", n.services())
		unset = &s
		if t.Logf("reload without the setting: %d of %d failed", s.Failed, s.Made); s.Failed == 0 {
			t.Error("no connection fails without the setting")
		}
	}
	return got, unset
}

// together runs all steps, in one order of installation.
func (nb neighbour) together(t *testing.T, path string, first bool, row *Row) {
	n := newNode(t, path)
	if nb.prepare != nil {
		nb.prepare(n)
	}
	row.Version = n.sh("%s", nb.version)
	checks := func(when string) {
		t.Helper()
		n.must(when, append(append(n.services(), nb.services(n)...), append(nb.allowed(n), nb.denied(n)...)...))
		n.own("verify", "--control-socket="+n.dir+"/control")
	}
	step := func(name string, f func()) {
		t.Helper()
		var through []check
		if name == stepReload || name == stepRestart {
			through = nb.through(n)
		}
		s := n.during(through, f)
		s.Name, s.First = name, first
		row.Steps = append(row.Steps, s)
		t.Logf("%s: %d of %d new connections failed, %d of %d established ones broke", name, s.Failed, s.Made, s.Broken, s.Flows)
		if s.Broken > 0 || s.Failed > 0 && slices.Contains(nb.lossless, name) {
			t.Errorf("%s: %d of %d new connections failed, %d of %d established ones broke", name, s.Failed, s.Made, s.Broken, s.Flows)
		}
	}
	alone := n.rules()
	if first {
		n.start()
		n.must("kube-nftproxy alone", append(n.services(), nb.without(n)...))
		step(stepInstall, func() { nb.install(n, true) })
	} else {
		nb.install(n, true)
		n.must("the neighbour alone", append(nb.allowed(n), nb.denied(n)...))
		before := n.rules()
		n.start()
		n.unchanged("start of kube-nftproxy", before)
	}
	checks("together")
	if nb.reload != nil {
		step(stepReload, func() { nb.reload(n) })
		checks("after the reload")
	}
	before := n.rules()
	step(stepRestart, func() { n.stop(); n.start() })
	n.unchanged("restart of kube-nftproxy", before)
	checks("after the restart")
	if first {
		step(stepRemove, func() { nb.remove(n) })
		n.must("after the removal of the neighbour", append(n.services(), nb.without(n)...))
		n.own("verify", "--control-socket="+n.dir+"/control")
		if !nb.leaves {
			n.unchanged("removal of the neighbour", alone)
		}
		return
	}
	n.stop()
	n.own("--cleanup")
	n.unchanged("removal of kube-nftproxy", before)
	n.must("after the removal of kube-nftproxy", append(nb.allowed(n), nb.denied(n)...))
	lab.Same(t, "", n.sh("nft list tables | grep kube-nftproxy || true"), "tables are left")
	nb.remove(n)
	if !nb.leaves {
		n.unchanged("removal of both", alone)
	}
}

// lines joins lines of a file.
func lines(all ...string) (out string) {
	for _, l := range all {
		out += fmt.Sprintln(l)
	}
	return out
}
