package config

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/component-base/featuregate"
	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"
)

// notes lists what an operator asked for that has no meaning here.
func notes(c *kubeproxy.KubeProxyConfiguration) (list []Note) {
	note := func(subject, format string, args ...any) {
		list = append(list, Note{subject, fmt.Sprintf(format, args...)})
	}
	if c.Mode != modeNFTables {
		note("mode", "Services are served by nftables, although the mode is %q; its section's sync periods and masquerading count", c.Mode)
		if len(c.NodePortAddresses) == 0 {
			note("nodePortAddresses", "node ports are served on all addresses of the node but loopback, as this mode has it; "+
				"mode nftables would serve them on the primary ones")
		}
	}
	timeouts := c.IPVS.TCPTimeout.Duration + c.IPVS.TCPFinTimeout.Duration + c.IPVS.UDPTimeout.Duration
	if c.Mode == modeIPVS && (c.IPVS.Scheduler != "" || c.IPVS.StrictARP || timeouts != 0) {
		note("ipvs", "there is no IPVS: endpoints are chosen at random, timeouts are those of conntrack, and ARP is left alone")
	}
	if c.Winkernel != (kubeproxy.KubeProxyWinkernelConfiguration{}) || c.WindowsRunAsService {
		note("winkernel", "it is about Windows, and ignored")
	}
	return append(list, gateNotes(c.FeatureGates)...)
}

// gateNotes says of the gates that were set which of them do nothing.
func gateNotes(set map[string]bool) (list []Note) {
	act := acting()
	for name := range set {
		if !slices.Contains(act, featuregate.Feature(name)) && name != "AllAlpha" && name != "AllBeta" {
			list = append(list, Note{"featureGates." + name, "it is about something that isn't done here, and ignored"})
		}
	}
	slices.SortFunc(list, func(a, b Note) int { return cmp.Compare(a.Subject, b.Subject) })
	return list
}
