package apply

import (
	"strings"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// timed returns a Service whose TCP connections have a timeout of an hour.
func timed() *model.Service {
	s := sticky(0, 0, 1)
	for _, p := range s.Ports {
		p.Timeouts = model.Timeouts{Protocol: inet.TCP, Established: time.Hour}
	}
	return s
}

// TestTimeoutsAreRepaired: a start replaces an object with other timeouts under the name of a planned one, and deletes
// objects that are not in the plan.
func TestTimeoutsAreRepaired(t *testing.T) {
	newWire(t)
	services := []*model.Service{timed()}
	start := func(want Kind) {
		k := open(t)
		mustSync(t, k, setSticky(resume(t, k, stickyOptions, services), services), want)
	}
	start(Full)
	start(Adopted)
	const object = `ct timeout timeouts-tcp-1h {
		protocol tcp
		l3proto ip
		policy = { established : %s }
	}`
	wanted := strings.ReplaceAll(object, "%s", "3600")
	has := func() bool {
		flat := func(s string) string {
			return strings.Join(strings.Fields(strings.ReplaceAll(s, "1h }", "3600 }")), " ")
		}
		return strings.Contains(flat(run(t, "nft", "list", "table", "ip", "kube-nftproxy")), flat(wanted))
	}
	if !has() {
		t.Fatalf("no timeouts: %s", run(t, "nft", "list", "table", "ip", "kube-nftproxy"))
	}
	run(t, "nft", "flush chain ip kube-nftproxy timeouts-tcp-1h; delete ct timeout ip kube-nftproxy timeouts-tcp-1h; "+
		"add ct timeout ip kube-nftproxy timeouts-tcp-1h { protocol tcp; policy = { established : 7200 }; }; "+
		"add rule ip kube-nftproxy timeouts-tcp-1h ct timeout set timeouts-tcp-1h")
	start(Full)
	if !has() {
		t.Error("other timeouts stay")
	}
	run(t, "nft", "add counter ip6 kube-nftproxy other")
	start(Full)
	if list := run(t, "nft", "list", "table", "ip6", "kube-nftproxy"); strings.Contains(list, "counter other") {
		t.Error("an unknown object stays")
	}
	start(Adopted)
}

// TestWithoutTimeouts: on a kernel without ct timeout, a Service has the timeouts of the node, and the planner reports
// this.
func TestWithoutTimeouts(t *testing.T) {
	newWire(t)
	o := stickyOptions
	o.Lacks.Timeouts = "no ct timeout"
	p, s := plan.New(o), timed()
	setSticky(p, []*model.Service{s})
	mustSync(t, open(t), p, Full)
	if list := run(t, "nft", "list", "ruleset"); strings.Contains(list, "ct timeout") {
		t.Error("the tables need ct timeout")
	}
	if got := p.Service(s.Name).Excess(); len(got) != 2 || got[0].Field != model.TimeoutsField {
		t.Errorf("left out: %v, want the timeouts of both families", got)
	}
}
