package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/config"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/kubeapi"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/watch"
)

// connection returns the configuration of the connection to the API server, and a function that returns the address
// in use. Their addresses, and those in errors, contain no password, because client-go logs addresses.
func (d *daemon) connection(logger klog.Logger) (cfg *rest.Config, server func() string, err error) {
	c := &d.Config.ClientConnection
	addresses, serverName := d.addresses()
	load := func() (*rest.Config, error) { return clientcmd.BuildConfigFromFlags(addresses[0], c.Kubeconfig) }
	if c.Kubeconfig == "" && d.Master == "" {
		logger.Info("Neither kubeconfig file nor master URL was specified, falling back to in-cluster config")
		load = rest.InClusterConfig
	}
	if cfg, err = load(); err == nil {
		cfg.ServerName = cmp.Or(cfg.ServerName, serverName)
		server, err = watch.Failover(cfg, addresses[1:], logger)
	}
	if err == nil {
		err = hidePassword(cfg)
	}
	if err != nil {
		return nil, nil, d.withoutSecrets(err)
	}
	cfg.QPS, cfg.Burst, cfg.ContentType = c.QPS, int(c.Burst), c.ContentType
	if cfg.AcceptContentTypes = c.AcceptContentTypes; cfg.AcceptContentTypes == "" {
		cfg.AcceptContentTypes = kubeapi.Accepted(c.ContentType)
	}
	rest.AddUserAgent(cfg, "kube-nftproxy/"+d.version)
	cfg.Wrap(watch.Impatient)
	return cfg, server, nil
}

// withProxy returns a function that also returns the HTTP proxy of requests to the address: that of the kubeconfig, or
// that of the environment.
func withProxy(server func() string, cfg *rest.Config) func() (address, proxy string) {
	proxyOf := cfg.Proxy
	if proxyOf == nil {
		proxyOf = utilnet.NewProxierWithNoProxyCIDR(http.ProxyFromEnvironment)
	}
	return func() (address, proxy string) {
		address = server()
		to, err := url.Parse(address)
		if err != nil {
			return address, ""
		}
		if by, err := proxyOf(&http.Request{URL: to}); err == nil && by != nil {
			proxy = by.String()
		}
		return address, proxy
	}
}

// addresses returns the addresses of the API server from --master, or else from the kubeconfig file. If the file
// lists several addresses, it also returns the name in their certificates. If the file lists one, the list has only
// an empty string: client-go reads the address itself.
func (d *daemon) addresses() (list []string, serverName string) {
	if d.Master != "" {
		return strings.Split(d.Master, ","), ""
	}
	file, err := clientcmd.LoadFromFile(d.Config.ClientConnection.Kubeconfig)
	if err != nil {
		return []string{""}, "" // client-go reports the error
	}
	current := file.Contexts[file.CurrentContext]
	if current == nil || file.Clusters[current.Cluster] == nil {
		return []string{""}, ""
	}
	cluster := file.Clusters[current.Cluster]
	if list = strings.Split(cluster.Server, ","); len(list) == 1 {
		return []string{""}, ""
	}
	return list, cluster.TLSServerName
}

// withoutSecrets returns an error without the secrets of configured addresses.
func (d *daemon) withoutSecrets(err error) error {
	text := err.Error()
	hide := func(list string) {
		for address := range strings.SplitSeq(list, ",") {
			if shown := config.WithoutSecrets(address); shown != address {
				text = strings.ReplaceAll(text, address, shown)
				quoted := strings.Trim(strconv.Quote(address), `"`)
				text = strings.ReplaceAll(text, quoted, shown)
			}
		}
	}
	hide(d.Master)
	if file, err := clientcmd.LoadFromFile(d.Config.ClientConnection.Kubeconfig); err == nil {
		for _, cluster := range file.Clusters {
			hide(cluster.Server)
			hide(cluster.ProxyURL)
		}
	}
	return errors.New(config.Redact(text))
}

// hidePassword moves user and password from the address of a connection to a header, as net/http would send them.
func hidePassword(cfg *rest.Config) error {
	address, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return err
	}
	if address.User != nil {
		user := address.User
		address.User = nil
		cfg.Host = address.String()
		cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return basicAuth{next, user} })
	}
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return discreet{next} })
	return nil
}

// basicAuth sends user and password with each request. client-go calls it after logging the request.
type basicAuth struct {
	http.RoundTripper
	user *url.Userinfo
}

// RoundTrip implements http.RoundTripper.
func (b basicAuth) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	password, _ := b.user.Password()
	r.SetBasicAuth(b.user.Username(), password)
	return b.RoundTripper.RoundTrip(r)
}

// WrappedRoundTripper gives client-go access to the inner transport.
func (b basicAuth) WrappedRoundTripper() http.RoundTripper { return b.RoundTripper }

// discreet removes passwords from errors: errors about a proxy contain the proxy's address.
type discreet struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (d discreet) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := d.RoundTripper.RoundTrip(r)
	if err != nil {
		if text := config.Redact(err.Error()); text != err.Error() {
			err = errors.New(text)
		}
	}
	return resp, err
}

// WrappedRoundTripper gives client-go access to the inner transport.
func (d discreet) WrappedRoundTripper() http.RoundTripper { return d.RoundTripper }

// printFlags logs all flags (kube-proxy: cliflag.PrintFlags).
func printFlags(logger klog.Logger, flags *pflag.FlagSet) {
	flags.VisitAll(func(f *pflag.Flag) { logger.V(1).Info(fmt.Sprintf("FLAG: --%s=%q", f.Name, config.FlagValue(f))) })
}
