package console

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/control"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// followed is a plan whose commits a command watches.
type followed struct{ *commits }

// set plans a Service with a cluster IP and endpoints, the last numbers of their addresses; none deletes it.
func (f followed) set(number byte, endpoints ...byte) {
	name := types.NamespacedName{Namespace: "default", Name: fmt.Sprint("svc-", number)}
	var s *model.Service
	if len(endpoints) > 0 {
		key := model.Key{Addr: netip.AddrFrom4([4]byte{10, 96, 0, number}), Port: 80, Protocol: inet.TCP}
		port := &model.ServicePort{
			Name: model.PortName{NamespacedName: name}, Protocol: inet.TCP, Frontends: []model.Frontend{{Key: key}},
			HasEndpoints: true,
		}
		for _, e := range endpoints {
			port.Cluster = append(port.Cluster, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, number, e}), 8080))
		}
		s = &model.Service{Name: name, Ports: []*model.ServicePort{port}}
	}
	f.service(name, s)
	f.planner.Set(name, s)
}

func (f followed) sync(err error) {
	f.synced(&beside.Sync{Result: apply.Result{Kind: apply.Partial}, Err: err})
}

func TestCommitsHaveTheChangesOfServices(t *testing.T) {
	p := plan.New(plan.Options{Families: inet.Families[:]})
	f := followed{&commits{feed: control.NewFeed[view.Commit](), planner: p}}
	next := func() view.Commit {
		t.Helper()
		c, _, err := f.feed.Next(t.Context())
		lab.Must(t, err)
		return c
	}
	for _, c := range []struct {
		number    byte
		endpoints []byte
		want      view.Change
	}{
		{1, []byte{1}, view.Change{Service: "default/svc-1", What: "new", Added: []string{"10.244.1.1:8080"}, FrontendsAdded: []string{"10.96.0.1:80/tcp"}}},
		{1, []byte{1, 2, 3}, view.Change{Service: "default/svc-1", What: "changed", Added: []string{"10.244.1.2:8080", "10.244.1.3:8080"}}},
		{1, []byte{1, 2}, view.Change{Service: "default/svc-1", What: "changed", Removed: []string{"10.244.1.3:8080"}}},
		{2, []byte{1}, view.Change{Service: "default/svc-2", What: "new", Added: []string{"10.244.2.1:8080"}, FrontendsAdded: []string{"10.96.0.2:80/tcp"}}},
		{2, nil, view.Change{Service: "default/svc-2", What: "gone", Removed: []string{"10.244.2.1:8080"}, FrontendsRemoved: []string{"10.96.0.2:80/tcp"}}},
	} {
		f.set(c.number, c.endpoints...)
		f.sync(nil)
		lab.Same(t, []view.Change{c.want}, next().Services, "")
	}
	f.set(1, 7)
	f.sync(errors.New("refused"))
	if c := next(); c.Failed != "refused" || len(c.Services) > 0 {
		t.Errorf("a failed sync: %+v", c)
	}
	for n := range mostChanges + 9 {
		f.set(byte(100+n), 1)
	}
	f.sync(nil)
	if c := next(); len(c.Services) != mostChanges || c.More != 10 {
		t.Errorf("after a failed sync and many changes: %d changes and %d more, want %d and 10", len(c.Services), c.More, mostChanges)
	}
}
