package conntrack

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/room"
)

// leaving are departures of Services with the cluster IP 10.96.0.1, and the last request.
type leaving struct {
	*Departures
	last     *Desired
	time     time.Time
	problems []model.Problem
}

func newLeaving() *leaving {
	l := &leaving{time: time.Unix(1_000, 0)}
	l.Departures = NewDepartures(DeparturesConfig{
		To: New(Config{}), Planner: plan.New(plan.Options{Families: inet.Families[:1]}),
		Now:    func() time.Time { return l.time },
		Report: func(p model.Problem) { l.problems = append(l.problems, p) },
	})
	return l
}

var (
	web    = types.NamespacedName{Namespace: "shop", Name: "web"}
	shopAt = netip.MustParseAddrPort("10.96.0.1:80")
)

// set plans the Service with endpoints, the last numbers of their addresses. Without a list, the Service is deleted.
func (l *leaving) set(name types.NamespacedName, listed []netip.Addr, terminate bool) {
	key := model.Key{Addr: shopAt.Addr(), Port: shopAt.Port(), Protocol: inet.TCP}
	s := &model.Service{Name: name, TerminateGone: terminate, Listed: listed, Ports: []*model.ServicePort{{
		Name: model.PortName{NamespacedName: name}, Protocol: inet.TCP, Frontends: []model.Frontend{{Key: key}},
	}}}
	l.Service(name, s)
	l.Planner.Set(name, s)
}

func (l *leaving) remove(name types.NamespacedName) {
	l.Service(name, nil)
	l.Planner.Set(name, nil)
}

// synced ends a sync, and lets time pass.
func (l *leaving) synced(err error, d time.Duration) {
	l.Synced(&beside.Sync{Err: err})
	l.serve()
	l.time = l.time.Add(d)
	l.serve()
}

func (l *leaving) serve() {
	l.Serve(true)
	if request, _ := l.To.take(); request != nil {
		l.last = request
	}
}

// ends reports whether the connections to an endpoint are terminated.
func (l *leaving) ends(endpoint netip.Addr) bool {
	return l.last != nil && l.last.Stale(&Flow{
		Protocol: inet.TCP, Replied: true, Established: true, DNAT: true, Destination: shopAt, Server: netip.AddrPortFrom(endpoint, 8080),
	})
}

func at(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 244, byte(n >> 8), byte(n)}) }

// Each row has steps in order, and the endpoints, of 1 to 3, whose connections are terminated. A step "1,2" lists
// these endpoints, "off" is the Service without termination, "deleted" no Service. "fail" is a failed sync, and "4s"
// a successful sync and a time. "none" lists no endpoint.
func TestDepartures(t *testing.T) {
	for _, tc := range []struct{ name, steps, want string }{
		{"an endpoint leaves", "1,2 0s 1 5s", "2"},
		{"all leave", "1,2 0s none 5s", "1,2"},
		{"it left before the start", "1 5s", ""},
		{"absent for less than five seconds", "1,2 0s 1 4.9s", ""},
		{"it returns in time", "1,2 0s 1 4s 1,2 5s", ""},
		{"it returns later", "1,2 0s 1 5s 1,2 0s", ""},
		{"it returns and leaves again", "1,2 0s 1 4s 1,2 0s 1 4s", ""},
		{"it left twice, the second time for good", "1,2 0s 1 4s 1,2 0s 1 5s", "2"},
		{"the commit fails", "1,2 0s 1 fail 10s", "2"},
		{"the time begins with the commit", "1,2 0s 1 fail 4s 0.9s", ""},
		{"the Service is deleted", "1,2 0s 1 4s deleted 5s", ""},
		{"the Service is deleted later", "1,2 0s 1 5s deleted 5s", ""},
		{"the Service is deleted and created", "1,2 0s deleted 0s 1 10s", ""},
		{"the annotation is removed", "1,2 0s 1 4s off 5s", ""},
		{"the annotation is set later", "off 0s 1 5s", ""},
		{"the other one follows", "1,2,3 0s 1,2 3s 1 5s", "2,3"},
		{"it is forgotten", "1,2 0s 1 5s 600s", ""},
	} {
		l := newLeaving()
		for step := range strings.FieldsSeq(tc.steps) {
			if d, err := time.ParseDuration(step); err == nil {
				l.synced(nil, d)
				continue
			}
			switch step {
			case "fail":
				l.synced(errors.New("no"), time.Hour)
			case "off":
				l.set(web, nil, false)
			case "deleted":
				l.remove(web)
			default:
				l.set(web, listOf(step), true)
			}
		}
		var got []string
		for n := 1; n <= 3; n++ {
			if l.ends(at(n)) {
				got = append(got, string(rune('0'+n)))
			}
		}
		if got := strings.Join(got, ","); got != tc.want {
			t.Errorf("%s: connections to %q are terminated, want %q", tc.name, got, tc.want)
		}
	}
}

func listOf(step string) (list []netip.Addr) {
	for n := range strings.SplitSeq(step, ",") {
		if n != "none" {
			list = append(list, at(int(n[0]-'0')))
		}
	}
	return list
}

// A frontend that another Service has is left out: the connections to it belong to that Service.
func TestDeparturesOfALostFrontend(t *testing.T) {
	l := newLeaving()
	older := types.NamespacedName{Namespace: "other", Name: "older"}
	l.set(older, []netip.Addr{at(1), at(2)}, false)
	l.set(web, []netip.Addr{at(1), at(2)}, true)
	l.synced(nil, 0)
	l.set(web, []netip.Addr{at(1)}, true)
	l.synced(nil, absence)
	if l.ends(at(2)) {
		t.Error("connections of another Service are terminated")
	}
	l.remove(older)
	l.set(web, nil, true)
	l.synced(nil, absence)
	if !l.ends(at(1)) {
		t.Error("connections are not terminated after the other Service was deleted")
	}
}

// A namespace whose endpoints leave all the time has no more departures than its part, one problem, and the memory
// for them is released. Another namespace is not affected.
func TestDeparturesAreBounded(t *testing.T) {
	l := newLeaving()
	many := make([]netip.Addr, 10_000)
	for i := range many {
		many[i] = at(i)
	}
	most := 0
	for range 5 {
		l.set(web, many, true)
		l.synced(nil, 0)
		l.set(web, nil, true)
		l.synced(nil, 0)
		most = max(most, len(l.waiting)+len(l.done)+len(l.fresh))
		l.time = l.time.Add(2 * time.Second)
	}
	if most != room.New(mostDeparted).Most() || len(l.problems) != 1 {
		t.Errorf("%d departures and problems %v, want %d departures and one problem", most, l.problems, room.New(mostDeparted).Most())
	}
	other := types.NamespacedName{Namespace: "other", Name: "web"}
	l.Planner.Set(web, nil)
	l.set(other, many[:2], true)
	l.synced(nil, 0)
	l.set(other, many[:1], true)
	l.synced(nil, absence)
	if !l.ends(at(1)) {
		t.Error("the connections of another namespace are not terminated")
	}
	l.synced(nil, memory)
	l.synced(nil, memory)
	if n := len(l.waiting) + len(l.done) + len(l.fresh) + l.room.Total(); n != 0 {
		t.Errorf("%d departures are left after all are forgotten", n)
	}
}
