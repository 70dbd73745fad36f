package config

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// No configuration file causes a panic. An accepted configuration, written and read again, is the same without notes.
func FuzzFile(f *testing.F) {
	kubeadm, err := os.ReadFile("testdata/kubeadm.yaml")
	lab.Must(f, err)
	const head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
	f.Add(kubeadm)
	for _, s := range []string{
		"", "mode: ipvs\nipvs: {excludeCIDRs: [10.0.0.0/8], syncPeriod: 10s}\nconntrack: {min: -1}", "unknown: 1\nmode: nftables\nmode: ipvs",
		"portRange: 1-2\nfeatureGates: {NoSuch: true, AllowServiceExternalIPs: false}", "nodePortAddresses: [primary, 010.0.0.0/8]\noomScoreAdj: 5000",
		"detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: br0}\nlogging: {format: json, vmodule: [{filePattern: a, verbosity: 3}]}",
		"healthzBindAddress: ':1'\nmetricsBindAddress: '[::]'\nclusterCIDR: 10.0.0.0/8,fd00::/64,", "nftables: {masqueradeBit: 99, minSyncPeriod: -1s}",
	} {
		f.Add([]byte(head + s))
	}
	f.Add([]byte("{}"))
	f.Add([]byte("apiVersion: v1\nkind: ConfigMap"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if checkContent(data) != nil {
			return
		}
		c, _, err := decode(data)
		if err != nil {
			t.Fatalf("checkContent accepts the file, decode does not: %v", err)
		}
		notes(c, nil)
		first, err := encode(c)
		lab.Must(t, err)
		again, remarks, err := decode(first)
		if err != nil || len(remarks) > 0 {
			t.Fatalf("the written configuration has notes %v, error %v\n%s", remarks, err, first)
		}
		second, err := encode(again)
		if !bytes.Equal(first, second) {
			t.Errorf("written twice (-first, %v +second):\n%s", err, cmp.Diff(string(first), string(second)))
		}
		lab.Check(t, checkContent(first), "the written configuration is invalid")
	})
}

// No command line causes a panic. The configuration of an accepted command line is valid as a file.
func FuzzFlags(f *testing.F) {
	for _, s := range []string{
		"--cluster-cidr\n10.244.0.0/16,fd00::/64\n-v\n4\n--proxy-mode=ipvs\n--ipvs-sync-period=3s", "--nodeport-addresses=primary\n--profiling",
		"--healthz-bind-address=[::]:1\n--metrics-bind-address=\n--metrics-port=0\n--bind_address=::1", "--feature-gates=AllBeta=true,X",
		"--detect-local-mode=BridgeInterface\n--hostname-override= \n--vmodule=a=3,b", "--config=\n--", "--ipvs-exclude-cidrs=10.0.0.0/8,\"a",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		o := NewOptions()
		fs := pflag.NewFlagSet("fuzz", pflag.ContinueOnError)
		fs.SetOutput(new(bytes.Buffer))
		o.AddFlags(fs)
		if err := fs.Parse(strings.Split(line, "\n")); err != nil {
			return
		}
		o.File = "" // FuzzFile tests the content of files
		if o.Complete(fs) != nil || o.Validate() != nil {
			return
		}
		if strings.ContainsFunc(line, func(r rune) bool { return unicode.IsControl(r) && r != '\n' }) {
			return // a setting without effect may have any text, and YAML forbids these characters
		}
		first, err := encode(o.Config)
		lab.Must(t, err)
		if err := checkContent(first); err != nil {
			t.Errorf("the configuration of these flags is invalid as a file: %v\n%s", err, first)
		}
	})
}
