package config

import (
	"testing"

	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

func TestMethodOfASchedulerOfIPVS(t *testing.T) {
	for _, tc := range []struct {
		mode            kubeproxy.ProxyMode
		scheduler, want string
	}{
		{modeIPVS, "", "random"}, {modeIPVS, "rr", "random"}, {modeIPVS, "sh", "source-hash"}, {modeIPVS, "mh", "maglev"}, {modeNFTables, "mh", "random"},
	} {
		c := &kubeproxy.KubeProxyConfiguration{Mode: tc.mode}
		c.IPVS.Scheduler = tc.scheduler
		lab.Same(t, tc.want, Method(c).String(), "mode %s, scheduler %q", tc.mode, tc.scheduler)
	}
}
