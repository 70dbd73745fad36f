//go:build e2e

package e2e

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// TestCommandsDuringSlowStart: the commands show the present share of a new endpoint, and find no difference between the kernel and the plan. After a
// restart, all endpoints have the same share.
func TestCommandsDuringSlowStart(t *testing.T) {
	// Tables for 30 and 31 slots have the same chain. With other numbers, diff would show the unused chain, which stays for a while.
	const (
		third  = "{addresses: [10.244.1.11], nodeName: node-2, conditions: {ready: true}}"
		newPod = "{addresses: [10.244.0.11], nodeName: node-1, conditions: {ready: true}}"
	)
	manifests := func(endpoints ...string) string {
		web := strings.Replace(deskService(1, "web", "", ""), "namespace: default", `namespace: default, annotations: {kube-nftproxy.io/slow-start: "3600"}`, 1)
		wrong := strings.Replace(deskService(2, "wrong", "", ""), "namespace: default", `namespace: default, annotations: {kube-nftproxy.io/slow-start: 30s}`, 1)
		return deskNode + web + deskSlice("web", "s1", deskPort, endpoints...) + wrong
	}
	d := newDesk(t, manifests(readyPod, remotePod, third))
	d.write(manifests(readyPod, remotePod, third, newPod))
	shares := func() (list []float64, err error) {
		var s view.Services
		if err := d.read(&s, "services", "default/web", "-o", "json"); err != nil {
			return nil, err
		}
		for _, e := range s.Services[0].Ports[0].Endpoints { // by address: the new one is the second
			list = append(list, math.Round(e.Share))
		}
		return list, nil
	}
	await := func(want ...float64) {
		t.Helper()
		eventually(t, patience, func() error {
			if got, err := shares(); err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
				return fmt.Errorf("shares %v, want %v; error %v", got, want, err)
			}
			return nil
		})
	}
	await(32, 3, 32, 32)
	for _, c := range []struct {
		command, want string
	}{
		{"verify", "OK: "}, {"diff", ""}, {"diff -f " + d.dir + "/manifests", ""}, {"trace 10.244.0.10 10.96.1.1:80", "3.23 %  to 10.244.0.11:8080"},
	} {
		text, code := d.command(strings.Fields(c.command)...)
		if code != 0 || !strings.Contains(text, c.want) {
			t.Errorf("%s: exit code %d, want 0 and %q:\n%s", c.command, code, c.want, text)
		}
	}
	if text, _ := d.command("services", "default/wrong"); !strings.Contains(text, `[kube-nftproxy.io/slow-start]: "30s": must be a`) {
		t.Errorf("the problem of the annotation is not shown:\n%s", text)
	}
	d.another("--cluster-cidr", "10.244.0.0/16", "-v", "2") // takes over
	await(0, 0, 0, 0)                                       // not shown, because they are equal
}
