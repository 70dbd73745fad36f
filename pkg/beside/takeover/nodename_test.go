package takeover

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestNodeName reads the name of the Node from the configuration of a kube-proxy.
func TestNodeName(t *testing.T) {
	answer := ""
	mux := http.NewServeMux()
	mux.HandleFunc("/configz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, answer) })
	server := httptest.NewServer(mux)
	defer server.Close()
	for text, want := range map[string]string{
		`{"kubeproxy.config.k8s.io":{"mode":"iptables","hostnameOverride":"node-1"}}`: "node-1",
		`{"kubeproxy.config.k8s.io":{"hostnameOverride":""}}`:                         "",
		"no JSON": "",
	} {
		answer = text
		if got := (Rival{Page: server.URL + "/proxyMode", Mode: "iptables"}).NodeName(t.Context()); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	lab.Same(t, "", (Rival{Page: server.URL + "/healthz"}).NodeName(t.Context()), "the health port")
}
