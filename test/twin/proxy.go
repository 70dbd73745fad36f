package twin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nftproxy/kube-nftproxy/test/cluster"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/program"
)

// KubeProxy is the name of the program kube-proxy, which sometimes needs a restart.
const KubeProxy = "kube-proxy"

// pollInterval is the interval of listings of the rules: each takes a process.
const pollInterval = 20 * time.Millisecond

// Config holds the settings of a Proxy.
type Config struct {
	// Host is the node of a lab.
	Host *lab.Host
	// Path is the path of the program, kube-nftproxy or kube-proxy according to its name.
	Path string
	// Flags are flags about behaviour, the same for both programs. Those for the API server and the node's name are added.
	Flags []string
}

// Build builds both programs, and those of the API server: kube-proxy in the folder of all Kubernetes programs, kube-nftproxy in
// dir. The output of the build is written to log.
func Build(ctx context.Context, dir string, log io.Writer) (kubeProxy, kubeNftproxy string, err error) {
	bin, err := cluster.Build(ctx, log, "etcd", "kube-apiserver", KubeProxy)
	if err != nil {
		return "", "", err
	}
	kubeNftproxy, err = program.Build(ctx, dir)
	return filepath.Join(bin, KubeProxy), kubeNftproxy, err
}

// Proxy is a program that follows an API in a node of a lab. Settle starts it.
type Proxy struct {
	config  Config
	api     *API
	args    []string
	forward *Forwarder
	running *program.Program
	// nodeIPs are those of the Node at the start of the program.
	nodeIPs []corev1.NodeAddress
}

// Proxy prepares a program to follow the API. The caller must Close it.
func (a *API) Proxy(c Config) (*Proxy, error) {
	kubeconfig := filepath.Join(a.dir, "kubeconfig")
	if err := a.Kubeconfig(kubeconfig, false); err != nil {
		return nil, err
	}
	args := program.Flags(kubeconfig, a.nodeName, "--proxy-mode=nftables", "--iptables-min-sync-period=10ms")
	p := &Proxy{config: c, api: a, args: append(args, c.Flags...)}
	var err error
	if p.forward, err = Forward(c.Host, a.Server()); err != nil {
		return nil, fmt.Errorf("forward to the API server: %w", err)
	}
	return p, nil
}

// String returns the program's name.
func (p *Proxy) String() string { return filepath.Base(p.config.Path) }

// Log returns the file with the program's output.
func (p *Proxy) Log() string { return filepath.Join(p.api.dir, p.String()+".log") }

// Close stops the program and removes all rules from its node.
func (p *Proxy) Close() error {
	if p.running != nil {
		p.running.Kill()
	}
	out, err := p.config.Host.Command(context.Background(), "nft", "flush", "ruleset").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("flush rules: %w: %s", err, out)
	}
	return errors.Join(err, p.forward.Close())
}

// refresh starts the program if it is not running, and restarts kube-proxy if the Node's addresses have changed since its start.
func (p *Proxy) refresh(ctx context.Context) error {
	var nodeIPs []corev1.NodeAddress
	if n := node(p.api.stored, p.api.nodeName); n != nil {
		nodeIPs = n.Status.Addresses
	}
	if p.running != nil && (p.String() != KubeProxy || slices.Equal(nodeIPs, p.nodeIPs)) {
		return nil
	}
	return p.Restart(ctx)
}

// Restart kills the program if it is running, starts it, and waits until it has synced.
func (p *Proxy) Restart(ctx context.Context) (err error) {
	if p.running != nil {
		p.running.Kill()
	}
	if n := node(p.api.stored, p.api.nodeName); n != nil {
		p.nodeIPs = n.Status.Addresses
	}
	// The program must not exit with the context of a single call.
	p.running, err = program.Start(context.WithoutCancel(ctx), program.Config{
		Host: p.config.Host, Path: p.config.Path, Args: p.args, Log: p.Log(),
	})
	if err != nil {
		return err
	}
	_, err = p.running.AwaitSync(ctx, p.running.Started())
	return err
}

// await waits until check accepts nft's listing.
func (p *Proxy) await(ctx context.Context, check func(listing string) error) error {
	return p.running.Await(ctx, pollInterval, "its rules", func(ctx context.Context) error {
		listing, err := p.list(ctx)
		if err != nil {
			return err
		}
		return check(listing)
	})
}

// list returns nft's listing of the node's rules.
func (p *Proxy) list(ctx context.Context) (string, error) {
	out, err := p.config.Host.Command(ctx, "nft", "list", "ruleset").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("list rules of %s: %w: %s", p, err, out)
	}
	return string(out), nil
}
