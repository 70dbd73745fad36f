//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	docpage "github.com/kube-nftproxy/kube-nftproxy/test/page"
)

var update = flag.Bool("update", false, "rewrite what the commands print in docs/debugging.md")

const debugging = "../../docs/debugging.md"

// TestDebugging runs the commands of docs/debugging.md on a node with the faults on that page, and compares their output.
func TestDebugging(t *testing.T) {
	manifests := mustRead(t, "testdata/debugging.yaml")
	d := newDesk(t, manifests)
	serve(t, inet.TCP, backendPort, d.Pods[0])
	for range 3 { // connections that are counted
		if got := d.Pods[1].Probe(t.Context(), inet.TCP, addrPort("10.96.0.10"), lab.Options{}); got.Outcome != lab.Answered {
			t.Fatal(got)
		}
	}
	d.await("status", "nothing\n") // no change waits any more
	for _, args := range []string{"services", "services default/web", "services default/api", "services default/edge", "status", "verify"} {
		part := strings.ReplaceAll(strings.Replace(args, "default/", "", 1), " ", "-")
		text, _ := d.command(strings.Fields(args)...)
		d.checkPart(part, "$ kube-nftproxy "+args+"\n"+text)
	}
	for part, to := range map[string]string{"trace": "10.244.0.11 10.96.0.10:80", "trace-edge": "198.51.100.7 203.0.113.8:443"} {
		text, _ := runCommand(t, d.Node, strings.Fields("trace "+to)...)
		d.checkPart(part, "$ kube-nftproxy trace "+to+"\n"+text)
	}
	d.checkPicture()
	planned := filepath.Join(d.dir, "planned")
	if err := errors.Join(os.Mkdir(planned, 0o700), os.WriteFile(filepath.Join(planned, "all.yaml"),
		[]byte(strings.Replace(manifests, "[10.244.1.11], nodeName: node-2, conditions: {ready: false}", "[10.244.1.11], nodeName: node-2, conditions: {ready: true}", 1)), 0o600)); err != nil {
		t.Fatal(err)
	}
	diff := "diff -f " + planned
	text, _ := d.command(strings.Fields(diff)...)
	d.checkPart("diff", "$ kube-nftproxy "+diff+"\n"+text)
	d.checkPart("watch", "$ kube-nftproxy watch\n"+d.watched(func() {
		d.write(strings.Replace(manifests, "[10.244.0.10]", "[10.244.0.11]", 1))
		d.await("status", "partial for default/web")
		nft(t, d.Node, "flush ruleset")
		d.await("status", "there is no table ip kube-nftproxy, ruleset last changed by nft")
	}))
	nft(t, d.Node, addFirewall)
	text, _ = d.command("status")
	_, findings, _ := strings.Cut(text, "\n\n")
	d.checkPart("status-firewall", "$ kube-nftproxy status\n[...]\n"+findings)
}

// terminal is the text of the README's picture with the colours of the program. TestPictureShowsTheCommands (test/house)
// draws it.
const terminal = "../../docs/plots/terminal.ansi"

// addFirewall adds a chain that drops all forwarded packets.
const addFirewall = "add table inet firewall; " +
	"add chain inet firewall forward { type filter hook forward priority 0; policy drop; }"

// checkPicture compares the commands of the README's picture: a broken Service and its reason, and a firewall that drops
// the packet of a client.
func (d *desk) checkPicture() {
	d.Helper()
	nft(d.T, d.Node, addFirewall)
	defer nft(d.T, d.Node, "delete table inet firewall")
	services, _ := d.command("services", "default/api", "--color=always")
	trace, _ := traceLive(d.T, d.Node, d.Pods[1], addrPort("10.96.0.10"), lab.TimedOut, "--color=always")
	text := "$ kube-nftproxy services default/api\n" + services +
		"\n$ kube-nftproxy trace 10.244.0.11 10.96.0.10:80 --live\n" + trace
	if *update {
		must(d, os.WriteFile(terminal, []byte(text), 0o644)) //nolint:gosec // it is public
	}
	lab.Same(d, alike(mustRead(d, terminal)), alike(text), "%s isn't what the program prints; run this test with -update", terminal)
}

// await waits until a command, all but the last argument, prints the last one.
func (d *desk) await(args ...string) {
	d.Helper()
	last := len(args) - 1
	eventually(d.T, patience, func() error {
		if text, _ := d.command(args[:last]...); !strings.Contains(text, args[last]) {
			return fmt.Errorf("%q isn't in:\n%s", args[last], text)
		}
		return nil
	})
}

// watched returns the output of watch while f runs.
func (d *desk) watched(f func()) string {
	d.Helper()
	cmd := d.Node.Command(d.Context(), program, "watch", "--control-socket", d.socket)
	var out bytes.Buffer
	cmd.Stdout = &out
	said, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	must(d, err)
	if line, err := bufio.NewReader(said).ReadString('\n'); !strings.HasPrefix(line, "Watching") {
		d.Fatalf("watch says %q, %v", line, err)
	}
	f()
	must(d, cmd.Process.Signal(syscall.SIGINT))
	if err := cmd.Wait(); err != nil {
		d.Errorf("watch ended with %v after Ctrl-C, want status 0", err)
	}
	return out.String()
}

// checkPart compares a part of the page, without parts that differ from run to run.
func (d *desk) checkPart(name, text string) {
	d.Helper()
	d.checkPartOf(debugging, name, text)
}

// checkPartOf compares a part of a page with the program's output.
func (d *desk) checkPartOf(page, name, text string) {
	d.Helper()
	text = secondSync.ReplaceAllString(text, "last sync ")
	text = "```console\n" + strings.ReplaceAll(release.ReplaceAllString(text, "kernel 6.18.0"), d.dir, "/etc/kube-nftproxy") + "```\n"
	if *update {
		must(d, docpage.Write(page, name, text))
	}
	b := mustRead(d, page)
	want, err := docpage.Part(b, name)
	must(d, err)
	lab.Same(d, alike(want), alike(text), "%s, part %s, isn't what the program prints; run this test with -update", page, name)
}

var (
	// secondSync matches a sync without a change after the one on the page, which may or may not happen.
	secondSync = regexp.MustCompile(`last sync +\S+ ago, nothing.*\nlast sent `)
	release    = regexp.MustCompile(`kernel \d+\.\d+\.\S*`)
	measured   = regexp.MustCompile(`kernel \d\S*|(\d[\d.:]*(h|ms|m|s|µs))+\b|\d\d:\d\d:\d\d\.\d+|pid \d+|generation \d+|\d+ (elements|rules|tables)|IPv[46] \d+`)
	spaces     = regexp.MustCompile(` +`)
)

// alike removes parts that differ from run to run and from kernel to kernel.
func alike(text string) []string {
	return strings.Split(spaces.ReplaceAllString(measured.ReplaceAllString(text, "N"), " "), "\n")
}
