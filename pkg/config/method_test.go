package config

import (
	"testing"

	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"
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
		if got := Method(c).String(); got != tc.want {
			t.Errorf("mode %s, scheduler %q: %s, want %s", tc.mode, tc.scheduler, got, tc.want)
		}
	}
}
