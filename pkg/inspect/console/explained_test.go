package console

import (
	"net/netip"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/outcome"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/proxy"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestOutcomesOfFrontends: a frontend has the words of its outcome, and each outcome with a reason has a frontend.
func TestOutcomesOfFrontends(t *testing.T) {
	port := func(has bool) *model.PortExplanation {
		return &model.PortExplanation{ServicePort: &model.ServicePort{HasEndpoints: has}}
	}
	local, nodePort := model.Frontend{Key: model.Key{Addr: netip.MustParseAddr("192.0.2.9")}, Local: true}, model.Frontend{Kind: model.NodePort, Local: true}
	facts := &proxy.Facts{}
	lost := frontendView(port(true), &local, false, facts)
	lost.Lose("shop/other")
	six := &view.Service{Ports: []view.ServicePort{{Family: "IPv6", Frontends: []view.Frontend{frontendView(port(true), &local, false, facts)}}}}
	addUnserved(six, inet.Families[:1])
	got := map[string]string{}
	for _, f := range []view.Frontend{
		frontendView(port(false), &nodePort, true, facts), frontendView(port(false), &nodePort, false, facts),
		frontendView(port(true), &nodePort, false, facts), frontendView(port(true), &local, false, facts), lost, six.Ports[0].Frontends[0],
	} {
		got[f.Reason] = f.Message
		lab.Same(t, outcome.Rows[outcome.Of(f.Reason)].Fix == "", f.Normal, "%s: normal", f.Reason)
	}
	want := map[string]string{}
	for _, row := range outcome.Rows {
		if row.Reason != "" {
			want[row.Reason] = row.Does
		}
	}
	want["Conflict"] += " shop/other"
	lab.Same(t, want, got, "the words of each reason")
}
