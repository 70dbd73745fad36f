package doctor

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/takeover"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// cniFolder is the folder of the CNI configurations, relative to the root folder of the node.
const cniFolder = "etc/cni/net.d"

// network checks the pod network. Like the container runtime, it uses the first CNI configuration by name.
func (s *Site) network(v *view.Preflight, rival takeover.Rival) {
	name, plugins, err := s.readNetwork()
	switch {
	case err != nil:
		v.Add("pod network", fmt.Sprintf("unknown: %v", err), view.NewFinding(view.Warning, view.NetworkNotFound, s.node(),
			err.Error(),
			"pods on this node have no network, if its container runtime reads this folder. kube-nftproxy still "+
				"serves the processes of the node",
			"install a pod network. If this command runs in a container, mount the node's root folder, and set "+
				"--root to its path",
			"the pods of this node"))
		return
	}
	text := fmt.Sprintf("%s (%s)", name, strings.Join(plugins, ", "))
	is := func(words ...string) bool {
		return slices.ContainsFunc(append(plugins, name), func(have string) bool {
			return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(strings.ToLower(have), w) })
		})
	}
	var list view.Findings
	object := "pod network " + name
	switch {
	case is("ovn-k8s"):
		list.Add(view.Wrong, view.NetworkServesServices, object,
			"OVN-Kubernetes serves Services itself", "two programs would translate connections to Services",
			"do not install kube-nftproxy in this cluster", "nothing")
	case is("cilium"):
		list.Add(view.Warning, view.NetworkServesServices, object,
			"Cilium serves Services itself if kubeProxyReplacement is "+
				"true", "two programs would translate connections to Services",
			"do not install kube-nftproxy if this prints true: kubectl -n kube-system get configmap cilium-config -o "+
				"jsonpath='{.data.kube-proxy-replacement}'", "nothing")
	case is("antrea"):
		list.Add(view.Warning, view.NetworkServesServices, object,
			"AntreaProxy serves Services itself if antreaProxy.proxyAll is "+
				"true", "two programs would translate connections to Services",
			"do not install kube-nftproxy if this prints proxyAll: true: kubectl -n kube-system get configmap "+
				"antrea-config -o yaml | grep proxyAll", "nothing")
	case is("calico") && rival.Mode == "nftables":
		list.Add(view.Warning, view.NetworkWatchesKubeProxy, object,
			"Calico follows the mode of kube-proxy by its tables, if nftablesMode is Auto",
			"after kube-nftproxy removes the tables of kube-proxy, Calico on this node restarts with iptables",
			"set nftablesMode to Enabled or Disabled before the installation. To see it: kubectl get "+
				"felixconfiguration default -o jsonpath='{.spec.nftablesMode}'",
			"Calico on all nodes, if the value changes the mode in use")
	}
	v.Add("pod network", text, list...)
}

// readNetwork returns the name of the first CNI configuration, and its plugins.
func (s *Site) readNetwork() (name string, plugins []string, err error) {
	folder := filepath.Join(s.Root, cniFolder)
	entries, err := os.ReadDir(folder)
	if err != nil {
		return "", nil, fmt.Errorf("no configuration of a pod network: %w", err)
	}
	for _, e := range entries {
		if !slices.Contains([]string{".conflist", ".conf", ".json"}, filepath.Ext(e.Name())) {
			continue
		}
		var c struct {
			Name, Type string
			Plugins    []struct{ Type string }
		}
		if err := json.Unmarshal([]byte(s.read(filepath.Join(cniFolder, e.Name()))), &c); err != nil {
			return "", nil, fmt.Errorf("read %s: %w", filepath.Join(folder, e.Name()), err)
		}
		if c.Type != "" {
			plugins = append(plugins, c.Type)
		}
		for _, p := range c.Plugins {
			plugins = append(plugins, p.Type)
		}
		return c.Name, plugins, nil
	}
	return "", nil, fmt.Errorf("no configuration of a pod network in %s", folder)
}

// read returns the first MiB of a file of the node, or "" if it cannot be read.
func (s *Site) read(name string) string {
	const most = 1 << 20
	b, err := os.ReadFile(filepath.Join(s.Root, name))
	if err != nil {
		return ""
	}
	return string(b[:min(len(b), most)])
}
