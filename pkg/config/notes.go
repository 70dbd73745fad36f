package config

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/component-base/featuregate"
	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/balance"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// notes returns notes about settings without effect, unknown feature gates included.
func notes(c *kubeproxy.KubeProxyConfiguration, unknown []string) (list []Note) {
	note := func(subject, format string, args ...any) {
		list = append(list, Note{Subject: subject, Text: fmt.Sprintf(format, args...)})
	}
	for _, name := range unknown {
		text := "unknown feature gate, ignored: kube-proxy v" + Kubernetes + " has no such gate"
		list = append(list, Note{"featureGates." + name, text, true})
	}
	if i := slices.IndexFunc(c.NodePortAddresses, isLoopback); i >= 0 && LoopbackForbidden(c) {
		note("nodePortAddresses",
			"node ports are not served on loopback, although %q is in the list: the feature gate %s is false",
			c.NodePortAddresses[i], LocalhostNodePorts)
	}
	if c.Mode != modeNFTables {
		note("mode", "the program uses nftables, although the mode is %q; the sync periods of this mode and the "+
			"masquerading of section iptables apply", c.Mode)
		if len(c.NodePortAddresses) == 0 {
			note("nodePortAddresses",
				"node ports are served on all addresses of the node except loopback, because the mode is %q; in mode "+
					"nftables, the default is only the primary addresses of the Node", c.Mode)
		}
	}
	timeouts := c.IPVS.TCPTimeout.Duration + c.IPVS.TCPFinTimeout.Duration + c.IPVS.UDPTimeout.Duration
	if c.Mode == modeIPVS && (c.IPVS.Scheduler != "" || c.IPVS.StrictARP || timeouts != 0) {
		note("ipvs", "the program does not use IPVS: the algorithm of Services without an annotation for it is %s, "+
			"the timeouts of conntrack apply, and ARP is unchanged", Method(c))
	}
	if c.Winkernel != (kubeproxy.KubeProxyWinkernelConfiguration{}) || c.WindowsRunAsService {
		note("winkernel", "the field is for Windows, and is ignored")
	}
	return append(list, gateNotes(c.FeatureGates, unknown)...)
}

// Method returns the algorithm of Services without an annotation for it. In mode ipvs, it follows the scheduler: in
// kube-proxy, sh hashes the client's address, and mh (Maglev) the client's address and port (FlagSourceHash is
// IP_VS_SVC_F_SCHED_MH_PORT).
func Method(c *kubeproxy.KubeProxyConfiguration) balance.Method {
	name := map[string]string{"sh": balance.SourceHash, "mh": balance.Maglev}[c.IPVS.Scheduler]
	if c.Mode != modeIPVS || name == "" {
		name = balance.Random
	}
	m, _ := balance.Parse(name) // the name is valid
	return m
}

// LoopbackForbidden reports whether the configuration forbids node ports on loopback, regardless of nodePortAddresses.
func LoopbackForbidden(c *kubeproxy.KubeProxyConfiguration) bool {
	enabled, set := c.FeatureGates[string(LocalhostNodePorts)]
	return set && !enabled
}

// isLoopback reports whether an item of nodePortAddresses is localhost, or a CIDR that begins with a loopback address.
func isLoopback(item string) bool {
	p, err := model.ParsePrefix(item)
	return item == Localhost || err == nil && p.Addr().IsLoopback()
}

// gateNotes returns notes about known gates without effect.
func gateNotes(set map[string]bool, unknown []string) (list []Note) {
	act := acting()
	for name := range set {
		if !slices.Contains(act, featuregate.Feature(name)) && name != "AllAlpha" && name != "AllBeta" &&
			!slices.Contains(unknown, name) {
			const text = "the gate does not apply to this program, and is ignored"
			list = append(list, Note{Subject: "featureGates." + name, Text: text})
		}
	}
	slices.SortFunc(list, func(a, b Note) int { return cmp.Compare(a.Subject, b.Subject) })
	return list
}
