package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// DefaultServiceCIDR is the dual-stack range from which the API server allocates cluster IPs unless Config names others.
const DefaultServiceCIDR = "10.96.0.0/16,fd00:10:96::/112"

// pollInterval is the interval of checks of a starting program: neither program offers an event.
const pollInterval = 50 * time.Millisecond

// Config holds the settings of the two programs. Only Dir is required.
type Config struct {
	// Dir is a scratch folder for data, keys and the logs etcd.log and kube-apiserver.log. Start creates it if necessary and
	// deletes the files of an earlier cluster. The caller removes it.
	Dir string
	// BinDir holds the programs etcd and kube-apiserver. Default: bin/kubernetes of the repository around the working
	// directory.
	BinDir string
	// Release is the release of kube-apiserver, such as v1.36.3; see [BuildRelease]. Default: that of test/kubernetes.
	Release string
	// ServiceCIDR is the range of cluster IPs, or one range per family joined by a comma; the
	// family of the first is the default of Services. Default: DefaultServiceCIDR.
	ServiceCIDR string
	// Address is the address of the API server. Clients must be able to reach it, so it may not be 0.0.0.0 or "::". etcd always
	// listens on 127.0.0.1. Default: 127.0.0.1.
	Address netip.Addr
	// Netns is the name (in /run/netns) of the network namespace of both programs; its loopback interface must be up. Default: the
	// namespace of this process.
	Netns string
	// WithoutServiceCIDRs says that Flags take the type ServiceCIDR from the API server.
	WithoutServiceCIDRs bool
	// Log receives one line for each step of Start. Default: none.
	Log io.Writer
	// Flags are additional flags of kube-apiserver.
	Flags []string
}

// Cluster is a running etcd and kube-apiserver.
type Cluster struct {
	config    Config
	authority authority
	server    netip.AddrPort
	etcd      string     // its URL
	log       string     // the end of the names of logs
	processes []*Process // in the order of their start
	client    kubernetes.Interface
	// checkpoint holds etcd's content by key.
	checkpoint map[string][]byte
}

// Start runs etcd and kube-apiserver and returns when both serve: /readyz is ok, the Namespace default, the Service kubernetes
// and the ServiceCIDR kubernetes exist, and user system:kube-proxy has its permissions. The context limits only the start;
// afterwards the cluster runs until Stop, or until this process exits. After an error no program runs, and the error quotes the
// end of the log of a failed program.
func Start(ctx context.Context, c Config) (*Cluster, error) {
	c, err := c.complete()
	if err != nil {
		return nil, err
	}
	cluster := &Cluster{config: c}
	if err := cluster.start(ctx); err != nil {
		cluster.Stop()
		return nil, fmt.Errorf("start cluster in %s: %w", c.Dir, err)
	}
	return cluster, nil
}

func (c Config) complete() (Config, error) {
	if c.Dir == "" {
		return c, errors.New("start cluster: no scratch folder given")
	}
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return c, fmt.Errorf("start cluster: %w", err)
	}
	c.Dir = dir
	if c.BinDir == "" {
		root, err := repository()
		if err != nil {
			return c, err
		}
		c.BinDir = filepath.Join(root, "bin", "kubernetes")
	}
	if c.Release == Releases[len(Releases)-1] {
		c.Release = ""
	}
	if c.ServiceCIDR == "" {
		c.ServiceCIDR = DefaultServiceCIDR
	}
	if !c.Address.IsValid() {
		c.Address = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	if c.Address.IsUnspecified() {
		return c, fmt.Errorf("start cluster: clients cannot reach address %s", c.Address)
	}
	if c.Log == nil {
		c.Log = io.Discard
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	begin := time.Now()
	step := func(name string) {
		fmt.Fprintf(c.config.Log, "%s after %.1f s\n", name, time.Since(begin).Seconds())
	}
	if err := c.prepare(); err != nil {
		return err
	}
	etcd, err := c.startEtcd(ctx)
	c.etcd = etcd
	if err != nil {
		return err
	}
	step("etcd healthy")
	if err := c.startAPIServer(ctx, etcd); err != nil {
		return err
	}
	step("kube-apiserver ready")
	if err := c.waitForDefaults(ctx); err != nil {
		return err
	}
	step("default objects present")
	return nil
}

// prepare creates the folder and the keys, and deletes the files of an earlier cluster.
func (c *Cluster) prepare() error {
	if err := os.MkdirAll(c.config.Dir, 0o700); err != nil {
		return err
	}
	if err := os.RemoveAll(c.path("etcd")); err != nil {
		return err
	}
	ranges, err := parseRanges(c.config.ServiceCIDR)
	if err != nil {
		return err
	}
	c.authority, err = newAuthority(c.config.Dir, c.config.Address, ranges)
	return err
}

func (c *Cluster) path(name string) string { return filepath.Join(c.config.Dir, name) }

// startEtcd starts etcd and returns its URL.
func (c *Cluster) startEtcd(ctx context.Context) (string, error) {
	addr, err := freePort(c.config.Netns, netip.AddrFrom4([4]byte{127, 0, 0, 1}))
	if err != nil {
		return "", err
	}
	url := "http://" + addr.String()
	p, err := c.run("etcd", append(membership(),
		"--data-dir="+c.path("etcd"),
		"--unsafe-no-fsync",
		"--log-level=warn",
		"--listen-client-urls="+url,
		"--advertise-client-urls="+url,
		"--listen-peer-urls=http://127.0.0.1:0",
	)...)
	if err != nil {
		return "", err
	}
	client := &http.Client{Transport: &http.Transport{DialContext: c.dial(), DisableKeepAlives: true}}
	return url, p.Await(ctx, func(ctx context.Context) error { return get(ctx, client, url+"/health") })
}

func (c *Cluster) startAPIServer(ctx context.Context, etcd string) error {
	if !c.server.IsValid() {
		addr, err := freePort(c.config.Netns, c.config.Address)
		if err != nil {
			return err
		}
		c.server = addr
	}
	addr := c.server
	p, err := c.run("kube-apiserver", append([]string{
		"--etcd-servers=" + etcd,
		"--bind-address=" + addr.Addr().String(),
		"--advertise-address=" + addr.Addr().String(),
		fmt.Sprintf("--secure-port=%d", addr.Port()),
		"--tls-cert-file=" + c.path(servingCertFile),
		"--tls-private-key-file=" + c.path(servingKeyFile),
		"--token-auth-file=" + c.path(tokenFile),
		"--authorization-mode=Node,RBAC",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.path(accountKeyFile),
		"--service-account-signing-key-file=" + c.path(accountKeyFile),
		"--service-cluster-ip-range=" + c.config.ServiceCIDR,
		"--service-node-port-range=30000-32767",
		// Tests write the EndpointSlices of the Service kubernetes themselves, as all others.
		"--endpoint-reconciler-type=none",
		// A test may write thousands of objects at once: no queue, no limit.
		"--enable-priority-and-fairness=false",
		"--max-requests-inflight=10000",
		"--max-mutating-requests-inflight=10000",
		"--watch-cache=true",
	}, c.config.Flags...)...)
	if err != nil {
		return err
	}
	c.client, err = kubernetes.NewForConfig(c.Admin())
	if err != nil {
		return err
	}
	client, err := rest.HTTPClientFor(c.Admin())
	if err != nil {
		return err
	}
	url := c.Admin().Host + "/readyz"
	return p.Await(ctx, func(ctx context.Context) error { return get(ctx, client, url) })
}

// run starts a program of BinDir, to be stopped by Stop.
func (c *Cluster) run(name string, args ...string) (*Process, error) {
	program := filepath.Join(c.config.BinDir, name)
	if name == "kube-apiserver" {
		program = filepath.Join(c.config.BinDir, c.config.Release, name)
	}
	argv := append([]string{program}, args...)
	if c.config.Netns != "" {
		// ip replaces itself with the program, so the process is still a child, and dies with this process.
		argv = append([]string{"ip", "netns", "exec", c.config.Netns}, argv...)
	}
	p, err := StartProcess(name, c.path(name+c.log+".log"), exec.Command(argv[0], argv[1:]...))
	if err != nil {
		return nil, err
	}
	c.processes = append(c.processes, p)
	return p, nil
}

// waitForDefaults waits for objects and permissions that the API server creates after it is ready.
func (c *Cluster) waitForDefaults(ctx context.Context) error {
	proxy, err := kubernetes.NewForConfig(c.Proxy())
	if err != nil {
		return err
	}
	checks := []func(context.Context) error{
		func(ctx context.Context) error {
			_, err := c.client.CoreV1().Namespaces().Get(ctx, "default", metav1.GetOptions{})
			return err
		},
		func(ctx context.Context) error {
			_, err := c.client.CoreV1().Services("default").Get(ctx, "kubernetes", metav1.GetOptions{})
			return err
		},
		func(ctx context.Context) error {
			_, err := c.client.NetworkingV1().ServiceCIDRs().Get(ctx, "kubernetes", metav1.GetOptions{})
			if c.config.WithoutServiceCIDRs && apierrors.IsNotFound(err) {
				return nil
			}
			return err
		},
		func(ctx context.Context) error {
			_, err := proxy.CoreV1().Services("").List(ctx, metav1.ListOptions{Limit: 1})
			return err
		},
	}
	server := c.processes[len(c.processes)-1]
	for _, check := range checks {
		if err := server.Await(ctx, check); err != nil {
			return err
		}
	}
	return nil
}

// Stop kills both programs and waits until they are gone. Their data are scratch data, so they need no orderly shutdown. A second
// Stop does nothing.
func (c *Cluster) Stop() {
	for i := len(c.processes) - 1; i >= 0; i-- {
		c.processes[i].Kill()
	}
	c.processes = nil
}

// KillServer kills the API server, as a power failure of its node does; its stored data stay in etcd.
func (c *Cluster) KillServer() {
	last := len(c.processes) - 1
	c.processes[last].Kill()
	c.processes = c.processes[:last]
}

// RestartServer starts the API server after [Cluster.KillServer], at the same address, and returns when it is ready.
func (c *Cluster) RestartServer(ctx context.Context) error {
	if err := c.startAPIServer(ctx, c.etcd); err != nil {
		return fmt.Errorf("restart kube-apiserver: %w", err)
	}
	return nil
}

// AddServer starts another API server on the same etcd, at another port. The cluster that it returns has no process but this server; its Stop
// does not stop etcd.
func (c *Cluster) AddServer(ctx context.Context) (*Cluster, error) {
	other := &Cluster{config: c.config, authority: c.authority, etcd: c.etcd, log: "-other"}
	if err := other.startAPIServer(ctx, c.etcd); err != nil {
		other.Stop()
		return nil, fmt.Errorf("start another kube-apiserver: %w", err)
	}
	return other, nil
}

// Pids returns the process IDs of etcd and kube-apiserver, for tests that pause or measure them.
func (c *Cluster) Pids() []int {
	var pids []int
	for _, p := range c.processes {
		pids = append(pids, p.pid)
	}
	return pids
}

// Server returns the HTTPS address and port of the API server.
func (c *Cluster) Server() netip.AddrPort { return c.server }

// Client returns a client with all permissions and without a rate limit.
func (c *Cluster) Client() kubernetes.Interface { return c.client }

// Authority returns the certificate, in PEM, that clients of the API server trust.
func (c *Cluster) Authority() []byte { return c.authority.caPEM }

// Admin returns a configuration for a user with all permissions (group system:masters) and without a rate limit. It works in any
// network namespace of this machine, even if the cluster runs in its own namespace.
func (c *Cluster) Admin() *rest.Config { return c.restConfig(c.authority.adminToken) }

// Proxy returns a configuration for the user system:kube-proxy, with the permissions of the ClusterRole system:node-proxier;
// otherwise it equals Admin.
func (c *Cluster) Proxy() *rest.Config { return c.restConfig(c.authority.proxyToken) }

func (c *Cluster) restConfig(token string) *rest.Config {
	config := &rest.Config{
		Host:            "https://" + c.server.String(),
		BearerToken:     token,
		TLSClientConfig: rest.TLSClientConfig{CAData: c.authority.caPEM},
		ContentConfig:   rest.ContentConfig{ContentType: "application/vnd.kubernetes.protobuf"},
		QPS:             -1,
	}
	if c.config.Netns != "" {
		config.Dial = c.dial()
	}
	return config
}

// Kubeconfig writes a kubeconfig file for the administrator or, with admin false, for user system:kube-proxy. Unlike Admin and
// Proxy, the file only works if the API server's address can be reached directly: if the cluster has its own network namespace,
// only in that one.
func (c *Cluster) Kubeconfig(path string, admin bool) error {
	token := c.authority.proxyToken
	if admin {
		token = c.authority.adminToken
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["test"] = &clientcmdapi.Cluster{
		Server:                   "https://" + c.server.String(),
		CertificateAuthorityData: c.authority.caPEM,
	}
	config.AuthInfos["test"] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	config.CurrentContext = "test"
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return nil
}
