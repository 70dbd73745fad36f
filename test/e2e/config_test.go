//go:build e2e

package e2e

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	proxy "github.com/kube-nftproxy/kube-nftproxy/test/program"
)

// volume is a folder in the form that the kubelet gives a ConfigMap: each version is a folder, and a link leads to the present
// one.
type volume struct {
	*testing.T
	dir string
}

// put makes text the content of the only file.
func (v volume) put(version, text string) (path string) {
	v.Helper()
	path = filepath.Join(v.dir, "config.conf")
	err := errors.Join(
		os.Mkdir(filepath.Join(v.dir, version), 0o700),
		os.WriteFile(filepath.Join(v.dir, version, "config.conf"), []byte(text), 0o600),
		os.Symlink(version, filepath.Join(v.dir, "..new")),
		os.Rename(filepath.Join(v.dir, "..new"), filepath.Join(v.dir, "..data")),
	)
	if _, missing := os.Lstat(path); missing != nil {
		err = errors.Join(err, os.Symlink("..data/config.conf", path))
	}
	must(v, err)
	return path
}

// TestKubeadmsConfiguration runs the program as kubeadm's DaemonSet runs kube-proxy, and changes the ConfigMap: mode "" stands
// for iptables, in which all addresses serve node ports. The ConfigMap has a gate and a field of a newer version.
func TestKubeadmsConfiguration(t *testing.T) {
	second := [2]netip.Addr{netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2")}
	w := newWorld(t, lab.Config{Pods: 2, NodeAddrs: second[:]})
	w.serve(w.Pods[0])
	w.publishWeb(w.Pods[0])
	text := mustRead(t, "../../pkg/config/testdata/kubeadm.yaml")
	config := strings.Replace(text, "/var/lib/kube-proxy/kubeconfig.conf", w.kubeconfig(), 1) +
		"featureGates: {KubeProxyOfTheFuture: true}\nserviceProxyName: other\n"
	v := volume{t, t.TempDir()}
	path := v.put("..1", config)
	socket := filepath.Join(w.dir, "control.sock")
	d := run(t, proxy.Config{Host: w.Node, Path: program, Args: []string{
		"--config=" + path, "--hostname-override=" + nodeName, "--control-socket=" + socket, "--config-reload=exit", "--config-reload-jitter=1s",
	}})
	d.awaitIdle(patience)
	w.reachWeb("pod-0")
	for _, addr := range second {
		reach(t, w.Client, netip.AddrPortFrom(addr, 30080), "pod-0")
	}
	status, _ := runCommand(t, w.Node, "status", "--control-socket", socket)
	for _, want := range []string{"featureGates.KubeProxyOfTheFuture: unknown feature gate", "serviceProxyName: unknown field"} {
		if !strings.Contains(status, want) || len(d.lines(strings.TrimSpace(want[strings.Index(want, ":")+1:]))) == 0 {
			t.Errorf("status or the log lack %q:\n%s", want, status)
		}
	}

	v.put("..2", strings.Replace(config, `mode: ""`, "mode: none", 1))
	d.awaitLine("The updated configuration file is invalid")
	if status, code := runCommand(t, w.Node, "status", "--control-socket", socket); code != 1 || !strings.Contains(status, "reason:  ConfigurationUnread, file "+path) {
		t.Errorf("status with a file that can't be used: exit code %d:\n%s", code, status)
	}
	v.put("..3", strings.Replace(config, `mode: ""`, "mode: nftables", 1))
	if err := exits(t, d.Program); err == nil || len(d.lines("content of the proxy server's configuration file was updated")) == 0 {
		t.Errorf("it ended with %v, and says:\n%s", err, d.LogTail(3))
	}
	w.reachWeb("pod-0") // the rules stay
}
