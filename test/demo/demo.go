package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// Where the Services of the manifests are, and the ports behind them.
var (
	web4     = netip.MustParseAddrPort("10.96.0.10:80")
	web6     = netip.MustParseAddrPort("[fd00:10:96::10]:80")
	webEcho  = netip.MustParseAddrPort("10.96.0.10:7")
	nodePort = netip.MustParseAddrPort("192.0.2.1:30080")
	cart     = netip.MustParseAddrPort("10.96.0.20:80")
	emptyTCP = netip.MustParseAddrPort("10.96.0.30:80")
	emptyUDP = netip.MustParseAddrPort("10.96.0.30:53")
)

const (
	webPort  = 8080
	echoPort = 7007
)

// demo is all that a run of the demo has; the zero value of the parts is "not there yet".
type demo struct {
	api, keep           bool
	program, kubernetes string

	out      *printer
	started  time.Time
	requests int
	steps    int

	scratch string
	lab     *lab.Lab
	source  source
	daemon  *daemon
	closed  bool

	// endpoints are those of Service web, asker the pod that asks, moved the endpoint that is removed.
	endpoints     []*lab.Host
	asker, asker2 *lab.Host
	moved         *lab.Host
}

// show tells the story up to its end, or to the first statement that is wrong.
func (d *demo) show(ctx context.Context) error {
	if err := d.prepare(ctx); err != nil {
		return err
	}
	steps := []struct {
		title string
		run   func(context.Context) error
	}{
		{"A pod uses a cluster IP", d.clusterIP},
		{"An external client uses a node port", d.nodePort},
		{"The same Service by IPv6", d.ipv6},
		{"An endpoint is removed under load", d.removal},
		{"Session affinity: a client keeps its endpoint", d.affinity},
		{"A Service without endpoints: refused at once. Why?", d.refusal},
		{"A firewall drops packets to a Service. Which rule?", d.firewall},
		{"10,000 Services: a change, kill -9 and the next start", d.many},
		{"Replace a real kube-proxy under load", d.replacement},
	}
	for i, s := range steps {
		if err := ctx.Err(); err != nil {
			return err
		}
		d.steps = i + 1
		d.out.step(d.steps, s.title)
		if err := s.run(ctx); err != nil {
			return err
		}
	}
	return nil
}

// prepare makes the network, fills the source and starts the daemon.
func (d *demo) prepare(ctx context.Context) (err error) {
	for _, program := range []string{d.program, filepath.Join(d.kubernetes, "kube-proxy")} {
		if _, err := os.Stat(program); err != nil {
			return fmt.Errorf("find a program (hack/demo.sh builds it): %w", err)
		}
	}
	if d.scratch, err = os.MkdirTemp("", "kube-nftproxy-demo-"); err != nil {
		return fmt.Errorf("make scratch folder: %w", err)
	}
	d.out.title(d.headline())
	if err := d.network(); err != nil {
		return err
	}
	if err := d.openSource(ctx); err != nil {
		return err
	}
	names, err := initial()
	if err != nil {
		return err
	}
	d.out.line("")
	if _, err := d.source.apply(ctx, names...); err != nil {
		return err
	}
	return d.begin(ctx)
}

func (d *demo) headline() string {
	if d.api {
		return "kube-nftproxy: Services by nftables, from a real kube-apiserver, on one node without a cluster"
	}
	return "kube-nftproxy: Services by nftables, from a folder of manifests, without a cluster"
}

// network makes the lab and its servers.
func (d *demo) network() (err error) {
	if d.lab, err = lab.New(lab.Config{Pods: 4, Remotes: 1}); err != nil {
		return err
	}
	d.endpoints = []*lab.Host{d.lab.Pods[0], d.lab.Pods[1], d.lab.Remotes[0]}
	d.moved, d.asker, d.asker2 = d.lab.Pods[1], d.lab.Pods[2], d.lab.Pods[3]
	for _, h := range d.endpoints {
		if _, err := h.Serve(inet.TCP, webPort); err != nil {
			return err
		}
		if _, err := h.ServeEcho(echoPort); err != nil {
			return err
		}
	}
	roles := map[*lab.Host]string{
		d.lab.Node: "the node, with kube-nftproxy", d.lab.Client: "a client outside of the cluster",
		d.asker: "a client", d.asker2: "another client",
	}
	for _, h := range d.endpoints {
		roles[h] = "an endpoint of web and cart"
	}
	roles[d.lab.Remotes[0]] += ", on another node"
	d.out.line("")
	d.out.line(fmt.Sprintf("    %d network namespaces, all connected to the node:", len(d.lab.Hosts())))
	d.out.line("")
	for _, h := range d.lab.Hosts() {
		d.out.line(fmt.Sprintf("      %-9s %-12s %-18s %s", h.Name, h.IPv4, h.IPv6, d.out.paint(dim, roles[h])))
	}
	return nil
}

func (d *demo) openSource(ctx context.Context) (err error) {
	if d.api {
		// A nil *api in the interface would not be nil.
		a, err := newAPI(ctx, d.scratch, d.kubernetes, d.lab.Node, d.out)
		if err != nil {
			return err
		}
		d.source = a
		return nil
	}
	f, err := newFolder(d.scratch, "FOLDER", d.out)
	d.source = f
	return err
}

// command is the daemon's command line as the story shows it, and as it is run.
func (d *demo) command() (shown string, args []string) {
	args = append(d.source.flags(), "--hostname-override", "node-1", "--proxy-mode", "nftables",
		"--cluster-cidr", "10.244.0.0/16,fd00:10:244::/56", "--control-socket", d.socket(), "-v", "2")
	shown = "kube-nftproxy --manifests $FOLDER --hostname-override node-1 \\"
	if d.api {
		shown = "kube-nftproxy --kubeconfig $KUBECONFIG --hostname-override node-1 \\"
	}
	return shown + "\n        --proxy-mode nftables --cluster-cidr 10.244.0.0/16,fd00:10:244::/56", args
}

// start starts the daemon.
func (d *demo) start() (err error) {
	_, args := d.command()
	d.daemon, err = startDaemon(d.lab.Node, d.log(), d.program, args...)
	return err
}

func (d *demo) log() string { return filepath.Join(d.scratch, "kube-nftproxy.log") }

// begin starts the daemon and waits until its first rules are in force.
func (d *demo) begin(ctx context.Context) error {
	if !d.api {
		d.out.note("$FOLDER has the files of test/demo/manifests: a Node, the Services web, cart and empty, EndpointSlices.")
	}
	shown, _ := d.command()
	d.out.command(shown)
	began := time.Now()
	if err := d.start(); err != nil {
		return err
	}
	if err := d.daemon.await(ctx, "the first rules", d.ready); err != nil {
		return err
	}
	took := time.Since(began)
	m, err := d.daemon.metrics(ctx)
	if err != nil {
		return err
	}
	d.out.ok(fmt.Sprintf("The node serves the Services %s after the start: %s with %s, committed in %s.", millis(took),
		batches(m.batches()), plural(m.elements(), "element"), millis(m.kernel())))
	return nil
}

// ready says whether cluster IPs and node ports, which need the Node, are served.
func (d *demo) ready(ctx context.Context) error {
	if err := d.daemon.live(ctx); err != nil {
		return err
	}
	m, err := d.daemon.metrics(ctx)
	if err != nil {
		return err
	}
	if m.full() == 0 {
		return errors.New("no rules yet")
	}
	return d.answers(ctx)
}

// close removes everything, in the reverse order. It may be called again.
func (d *demo) close() error {
	if d.closed {
		return nil
	}
	d.closed = true
	var errs []error
	if d.daemon != nil {
		errs = append(errs, d.daemon.stop())
	}
	if d.source != nil {
		d.source.close()
	}
	if d.lab != nil {
		errs = append(errs, d.lab.Close())
	}
	if d.scratch != "" {
		errs = append(errs, os.RemoveAll(d.scratch))
	}
	return errors.Join(append(errs, d.leftovers())...)
}

// leftovers looks for what should be gone.
func (d *demo) leftovers() error {
	paths := []string{d.scratch}
	if d.lab != nil {
		for _, h := range d.lab.Hosts() {
			paths = append(paths, h.Path)
		}
	}
	var errs []error
	for _, path := range paths {
		if path == "" {
			continue
		}
		if _, err := os.Lstat(path); err == nil {
			errs = append(errs, fmt.Errorf("%s is still there", path))
		}
	}
	return errors.Join(errs...)
}

// logTail returns the end of the daemon's log, each line cut to what fits.
func (d *demo) logTail() string {
	text, err := os.ReadFile(d.log())
	if err != nil || len(text) == 0 {
		return ""
	}
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	var b strings.Builder
	for _, line := range lines[max(0, len(lines)-12):] {
		fmt.Fprintf(&b, "      %s\n", line)
	}
	return strings.TrimRight(b.String(), "\n")
}

// farewell sums up; everything has been removed by now.
func (d *demo) farewell() {
	d.out.title("Done")
	d.out.ok(fmt.Sprintf("%d requests in %d steps, all as expected, in %.1f s.", d.requests,
		d.steps, time.Since(d.started).Seconds()))
	d.out.ok("Namespaces, programs and files of the demo are gone.")
	d.out.line("")
	next := "make demo API=1    the same with a real kube-apiserver"
	if d.api {
		next = "make demo          the same from a folder of manifests, in seconds"
	}
	for _, s := range []string{
		next, "make demo KEEP=1   the same, and a prompt on the node", "README.md          install kube-nftproxy in a cluster",
	} {
		d.out.line("    " + s)
	}
	d.out.line("")
}
