package daemon

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/console"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/kubeapi"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

const secret = "S3CR3T"

// outputs collects all output of the program.
type outputs struct {
	strings.Builder
	context.Context
}

// listen collects the log at the highest verbosity, until the end of the test.
func listen(t *testing.T) *outputs {
	t.Helper()
	out := &outputs{}
	verbosity := flag.NewFlagSet("", flag.ContinueOnError)
	klog.InitFlags(verbosity)
	set := func(v string) {
		lab.Must(t, verbosity.Set("v", v))
	}
	set("10")
	logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Verbosity(10), textlogger.Output(out)))
	klog.SetLogger(logger)
	t.Cleanup(func() { klog.ClearLogger(); set("0") })
	out.Context = klog.NewContext(t.Context(), logger)
	return out
}

// check searches for the secret, in plain text and encoded.
func (o *outputs) check(t *testing.T) {
	t.Helper()
	for _, form := range []string{secret, base64.StdEncoding.EncodeToString([]byte("u:" + secret))} {
		for _, line := range strings.Split(o.String(), "\n") {
			if strings.Contains(line, form) {
				t.Errorf("shown: %s", line)
			}
		}
	}
}

// TestNoPasswordIsShown puts a password into each address that can contain one, and searches pages, the bundle,
// errors and the log at each verbosity for it. The API server receives it.
func TestNoPasswordIsShown(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "u" || password != secret {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}`)
	}))
	defer api.Close()
	withPassword := strings.Replace(api.URL, "://", "://u:"+secret+"@", 1)
	nobody := "http://u:" + secret + "@127.0.0.1:1"
	kubeconfig := func(server, proxy string) string {
		path := filepath.Join(t.TempDir(), "config")
		text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: x\ncontexts: [{name: x, context: {cluster: x}}]\nclusters: [{name: x, cluster: {server: %q, proxy-url: %q}}]\n",
			server, proxy)
		lab.Must(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	for _, c := range []struct {
		name, args string
		works      bool
	}{
		{"--master", "--master " + withPassword, true},
		{"--master with a second address", "--master " + withPassword + ",http://127.0.0.2:1", true},
		{"--master with a password in the second address", "--master http://127.0.0.2:1," + withPassword, false},
		{"--master without a scheme", "--master " + strings.TrimPrefix(withPassword, "http://"), true},
		{"--master that does not answer", "--master " + nobody, false},
		{"--master that is not an address", "--master http://u:" + secret + "%zz@h:port", false},
		{"--master with a path and no scheme", "--master u:" + secret + "@h/path", false},
		{"--master with a token in the query", "--master http://h:port?token=" + secret, false},
		{"kubeconfig", "--kubeconfig " + kubeconfig(withPassword, ""), true},
		{"kubeconfig with several servers", "--kubeconfig " + kubeconfig(withPassword+",http://127.0.0.2:1", ""), true},
		{"kubeconfig with a password in the second address", "--kubeconfig " + kubeconfig("http://127.0.0.2:1,"+withPassword, ""), false},
		{"kubeconfig with a server that does not answer", "--kubeconfig " + kubeconfig(nobody, ""), false},
		{"kubeconfig with a server that is not an address", "--kubeconfig " + kubeconfig("http://u:"+secret+"/ @h:port", ""), false},
		{"kubeconfig with a proxy that does not answer", "--kubeconfig " + kubeconfig("http://127.0.0.2:1", nobody), false},
		{"kubeconfig with a proxy that is not an address", "--kubeconfig " + kubeconfig("http://127.0.0.2:1", "http://u:"+secret+" /@h"), false},
		{"kubeconfig with a proxy of an unknown kind", "--kubeconfig " + kubeconfig("http://127.0.0.2:1", "gopher://u:"+secret+"@h"), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			out := listen(t)
			d := &daemon{Settings: parse(t, c.args), registry: prometheus.NewRegistry(), started: time.Now()}
			err := d.use(out)
			lab.Same(t, c.works, err == nil, "the API server: %v", err)
			fmt.Fprintln(out, err)
			klog.FromContext(out).Error(err, "Error running ProxyServer")
			printFlags(klog.FromContext(out), d.Flags)
			out.Write(d.FlagsText())
			text, err := d.ConfigText()
			fmt.Fprintf(out, "%s %v\n", text, err)
			port := d.metricsPort()
			for _, path := range []string{"/flagz", "/configz", "/statusz", "/metrics"} {
				for _, accept := range []string{"", "application/json;v=v1beta1;g=config.k8s.io;as=Flagz", "application/yaml;v=v1beta1;g=config.k8s.io;as=Flagz"} {
					w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, nil)
					r.Header.Set("Accept", accept)
					port.ServeHTTP(w, r)
					out.WriteString(w.Body.String())
				}
			}
			for _, want := range []string{"FLAG: --kubeconfig=", "clientConnection", "\nmaster="} {
				if !bytes.Contains([]byte(out.String()), []byte(want)) {
					t.Errorf("the test does not see %q", want)
				}
			}
			out.check(t)
		})
	}
}

// use reads from the API server as the program does, and writes the output of status.
func (d *daemon) use(out *outputs) error {
	connection, server, err := d.connection(klog.FromContext(out))
	if err != nil {
		return err
	}
	client, err := kubeapi.New(connection)
	if err != nil {
		return err
	}
	d.api = console.NewAPI(withProxy(server, connection), client, nil)
	_, err = client.Services("").List(out, metav1.ListOptions{})
	if err != nil {
		d.api.Failed("services", err)
	}
	fmt.Fprintf(out, "%+v\n", d.api.State(out))
	return err
}

// failing is a transport that always fails.
type failing string

func (f failing) RoundTrip(*http.Request) (*http.Response, error) { return nil, errors.New(string(f)) }

// TestErrorsOfTheTransportAreRedacted: net/http shows the address of an invalid proxy from the environment.
func TestErrorsOfTheTransportAreRedacted(t *testing.T) {
	_, err := discreet{failing(`invalid proxy address "http://u:` + secret + ` x@h"`)}.RoundTrip(nil) //nolint:bodyclose // there is none
	if err == nil || err.Error() != `invalid proxy address "http://h"` {
		t.Error(err)
	}
}
