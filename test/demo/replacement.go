package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/program"
)

const (
	// askers is the number of clients that open connections at the same time, each after a pause.
	askers = 4
	pause  = 2 * time.Millisecond
	// calmly is the time that the load continues before and after the replacement.
	calmly = 300 * time.Millisecond
	// soon is the longest wait for a connection: the kernel sends a lost SYN again after a second, and a connection
	// with a lost SYN counts as lost.
	soon = 900 * time.Millisecond
)

// replacement gives the node to a real kube-proxy, and replaces it while clients open connections.
func (d *demo) replacement(ctx context.Context) error {
	d.out.note("First, kube-nftproxy leaves the node, and a real kube-proxy serves it.")
	kubeProxy, err := d.kubeProxy(ctx)
	if err != nil {
		return err
	}
	defer kubeProxy.Kill()
	if err := d.tables(ctx, "kube-proxy"); err != nil {
		return err
	}
	c, err := d.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // the step has used it
	d.out.arrow(d.asker.Name, "one connection, kept open", "web "+webEcho.String())
	d.out.arrow(d.asker.Name, fmt.Sprintf("new connections, from %d clients", askers), "web "+web4.String())
	asked, stop := d.load(ctx)
	defer stop()
	time.Sleep(calmly)
	d.out.command(fmt.Sprintf("kill %d; kube-nftproxy …", kubeProxy.Pid()))
	if err := kubeProxy.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	<-kubeProxy.Ended()
	began := time.Now()
	if err := d.start(); err != nil {
		return err
	}
	if err := d.daemon.await(ctx, "the removal of kube-proxy's rules", d.alone); err != nil {
		return err
	}
	took := time.Since(began)
	time.Sleep(calmly)
	stop()
	d.out.ok(fmt.Sprintf("%s after its start, kube-nftproxy serves, and has removed the rules of kube-proxy.", millis(took)))
	if err := d.tables(ctx, "kube-nftproxy"); err != nil {
		return err
	}
	lost := asked.n - asked.count[lab.Answered.String()]
	err = d.expect(lost == 0, fmt.Sprintf("Connections before, during and after the replacement: %d. Lost: %d.", asked.n, lost),
		"0 lost", asked.String())
	if err != nil {
		return err
	}
	return d.say(c, "after", fmt.Sprintf("The connection to %s continues.", c.server))
}

// kubeProxy replaces the daemon by kube-proxy, and waits until that serves the Services.
func (d *demo) kubeProxy(ctx context.Context) (*program.Program, error) {
	if err := d.daemon.stop(); err != nil {
		return nil, err
	}
	if out, err := d.lab.Node.Command(ctx, d.program, "--cleanup").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("remove the rules: %w: %s", err, out)
	}
	where := []string{"--kubeconfig", filepath.Join(d.scratch, "kubeconfig")}
	if !d.api {
		address, err := d.serveObjects(ctx)
		if err != nil {
			return nil, err
		}
		where = []string{"--master", "http://" + address}
	}
	d.out.command("kube-proxy --proxy-mode nftables --hostname-override node-1 …")
	p, err := program.Start(context.Background(), program.Config{
		Host: d.lab.Node, Path: filepath.Join(d.kubernetes, "kube-proxy"), Log: d.log(), OwnGroup: true,
		Args: append(where, "--proxy-mode=nftables", "--hostname-override=node-1",
			"--cluster-cidr=10.244.0.0/16,fd00:10:244::/56",
			// Other values would set sysctls of the whole machine.
			"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0"),
	})
	if err != nil {
		return nil, err
	}
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return p, p.Await(waiting, 5*time.Millisecond, "kube-proxy", d.answers)
}

// serveObjects serves the objects of the folder to kube-proxy, which has no flag for a folder: just enough of an
// API server for the lists and watches of a client that never writes.
func (d *demo) serveObjects(ctx context.Context) (address string, err error) {
	lists := map[string][]runtime.Object{}
	names, err := initial()
	if err != nil {
		return "", err
	}
	for _, name := range names {
		objects, err := parse(name)
		if err != nil {
			return "", err
		}
		for _, o := range objects {
			resource := strings.ToLower(o.GetObjectKind().GroupVersionKind().Kind) + "s"
			lists[resource] = append(lists[resource], o)
		}
	}
	var listener net.Listener
	err = d.lab.Node.Do(func() (err error) {
		listener, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	})
	if err != nil {
		return "", fmt.Errorf("serve objects: %w", err)
	}
	server := &http.Server{ReadHeaderTimeout: patience, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch query := r.URL.Query(); {
		case r.Method != http.MethodGet || query.Has("sendInitialEvents"):
			http.Error(w, "not supported", http.StatusBadRequest)
		case query.Get("watch") != "": // without an event
			w.Header().Set("Content-Type", "application/json")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		default:
			kind, version := kindOf(r.URL.Path)
			items := lists[r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]]
			if items == nil {
				items = []runtime.Object{}
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(map[string]any{
				"kind": kind, "apiVersion": version, "metadata": map[string]string{"resourceVersion": "1"}, "items": items,
			})
		}
	})}
	go func() { _ = server.Serve(listener) }()
	context.AfterFunc(ctx, func() { _ = server.Close() })
	return listener.Addr().String(), nil
}

// kindOf returns the kind of list and the version for a path such as /apis/discovery.k8s.io/v1/endpointslices.
func kindOf(path string) (kind, version string) {
	for resource, kind := range map[string]string{
		"services": "Service", "nodes": "Node", "endpointslices": "EndpointSlice", "servicecidrs": "ServiceCIDR",
	} {
		if before, found := strings.CutSuffix(path, "/"+resource); found {
			_, version, _ := strings.Cut(strings.TrimPrefix(before, "/"), "/")
			return kind + "List", version
		}
	}
	return "Status", "v1"
}

// answers returns an error unless web answers at its cluster IPs and its node port. kube-proxy programs each IP family
// by itself.
func (d *demo) answers(ctx context.Context) error {
	for _, a := range []lab.Answer{
		d.asker.Probe(ctx, inet.TCP, web4, lab.Options{}), d.asker.Probe(ctx, inet.TCP, web6, lab.Options{}),
		d.lab.Client.Probe(ctx, inet.TCP, nodePort, lab.Options{}),
	} {
		if a.Outcome != lab.Answered {
			return fmt.Errorf("web: %s", a)
		}
	}
	return nil
}

// load opens connections to web from several clients until stop, which may be called again.
func (d *demo) load(ctx context.Context) (all *answers, stop func()) {
	all = &answers{count: map[string]int{}}
	ctx, cancel := context.WithCancel(ctx)
	var mu sync.Mutex
	var clients sync.WaitGroup
	for range askers {
		clients.Go(func() {
			for ctx.Err() == nil {
				// A connection that has begun ends, also after stop.
				a := d.asker.Probe(context.WithoutCancel(ctx), inet.TCP, web4, lab.Options{Timeout: soon})
				mu.Lock()
				all.n++
				all.count[a.Outcome.String()]++
				mu.Unlock()
				time.Sleep(pause)
			}
		})
	}
	return all, sync.OnceFunc(func() {
		cancel()
		clients.Wait()
		d.requests += all.n
	})
}

// alone returns an error unless the daemon serves and kube-proxy's tables are gone.
func (d *demo) alone(ctx context.Context) error {
	if err := d.ready(ctx); err != nil {
		return err
	}
	if list, err := d.listed(ctx); err != nil || strings.Contains(list, "kube-proxy") {
		return errors.Join(err, fmt.Errorf("tables: %s", list))
	}
	return nil
}

func (d *demo) listed(ctx context.Context) (string, error) {
	out, err := d.lab.Node.Command(ctx, "nft", "list", "tables").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("list tables: %w: %s", err, out)
	}
	return string(out), nil
}

// tables shows the tables of the node, which all belong to one proxy.
func (d *demo) tables(ctx context.Context, proxy string) error {
	d.out.command("nft list tables")
	list, err := d.listed(ctx)
	if err != nil {
		return err
	}
	d.out.output(list)
	want := fmt.Sprintf("table ip %s\ntable ip6 %s\n", proxy, proxy)
	if lines := slices.Sorted(strings.Lines(list)); strings.Join(lines, "") != want { // nft lists them in any order
		return &mismatch{"The tables belong to " + proxy + ".", want, list}
	}
	return nil
}
