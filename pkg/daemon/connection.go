package daemon

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/config"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/watch"
)

// connection returns how to reach the API server. No address in it, nor in its errors, holds a password: client-go logs addresses.
func (d *daemon) connection(logger klog.Logger) (*rest.Config, error) {
	c := &d.Config.ClientConnection
	load := func() (*rest.Config, error) { return clientcmd.BuildConfigFromFlags(d.Master, c.Kubeconfig) }
	if c.Kubeconfig == "" && d.Master == "" {
		logger.Info("Neither kubeconfig file nor master URL was specified, falling back to in-cluster config")
		load = rest.InClusterConfig
	}
	cfg, err := load()
	if err == nil {
		err = hidePassword(cfg)
	}
	if err != nil {
		return nil, d.withoutAddresses(err)
	}
	cfg.QPS, cfg.Burst, cfg.ContentType = c.QPS, int(c.Burst), c.ContentType
	if cfg.AcceptContentTypes = c.AcceptContentTypes; cfg.AcceptContentTypes == "" {
		cfg.AcceptContentTypes = c.ContentType + ",application/json"
	}
	rest.AddUserAgent(cfg, "kube-nftproxy/"+d.version)
	cfg.Wrap(watch.Impatient)
	return cfg, nil
}

// withoutAddresses returns an error in which the addresses that were configured have no secrets.
func (d *daemon) withoutAddresses(err error) error {
	text := err.Error()
	hide := func(address string) {
		if shown := config.WithoutSecrets(address); shown != address {
			text = strings.ReplaceAll(text, address, shown)
			quoted := strings.Trim(strconv.Quote(address), `"`)
			text = strings.ReplaceAll(text, quoted, shown)
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

// hidePassword takes user and password out of the address of a connection. They are sent as net/http would send them.
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

// basicAuth sends user and password with each request. client-go calls it after it has logged the request.
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

// WrappedRoundTripper lets client-go find the transport inside.
func (b basicAuth) WrappedRoundTripper() http.RoundTripper { return b.RoundTripper }

// discreet returns errors without passwords: those about a proxy hold the proxy's address.
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

// WrappedRoundTripper lets client-go find the transport inside.
func (d discreet) WrappedRoundTripper() http.RoundTripper { return d.RoundTripper }

// printFlags logs all flags (kube-proxy: cliflag.PrintFlags).
func printFlags(logger klog.Logger, flags *pflag.FlagSet) {
	flags.VisitAll(func(f *pflag.Flag) { logger.V(1).Info(fmt.Sprintf("FLAG: --%s=%q", f.Name, config.FlagValue(f))) })
}
