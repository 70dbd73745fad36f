//go:build e2e

package e2e

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestZonesPage compares the section about zones with the output of the program, after 20 connections.
func TestZonesPage(t *testing.T) {
	zoned := func(endpoint, zone string) string { return strings.TrimSuffix(endpoint, "}") + ", zone: " + zone + "}" }
	d := newDesk(t, deskNode+deskService(1, "web", "", "")+deskSlice("web", "s1", deskPort, zoned(readyPod, "a"), zoned(remotePod, "b")), "--count-connections=zones")
	serve(t, inet.TCP, backendPort, d.Pods[0], d.Remotes[0])
	by := map[string]int{}
	for len(by) < 2 || by["pod-0"]+by["remote-0"] < 20 || by["pod-0"] == by["remote-0"] { // equal numbers cannot be told apart below
		a := d.Pods[1].Probe(t.Context(), inet.TCP, addrPort("10.96.1.1"), lab.Options{Timeout: patience})
		if a.Outcome != lab.Answered {
			t.Fatal(a)
		}
		by[a.Server]++
	}
	all := by["pod-0"] + by["remote-0"]
	page := "../../docs/metrics.md"
	// Chance decides the numbers. The page has 11 and 9 connections of 20.
	shown := map[string]string{fmt.Sprint(all): "20", fmt.Sprint(by["pod-0"]): "11", fmt.Sprint(by["remote-0"]): "9"}
	counts, number := regexp.MustCompile(`(?m)\b\d+ connections?|\} \d+$`), regexp.MustCompile(`\d+`)
	usual := func(text string) string {
		return counts.ReplaceAllStringFunc(text, func(count string) string {
			return number.ReplaceAllStringFunc(count, func(n string) string { return cmp.Or(shown[n], n) })
		})
	}
	const metrics = `curl -s http://127.0.0.1:10249/metrics | grep ^kubenftproxy_service_zone_connections_total`
	var out []byte
	eventually(t, patience, func() (err error) {
		out, err = d.Node.Command(t.Context(), "sh", "-c", metrics).Output()
		if want := fmt.Sprintf(`zone="a"} %d`, by["pod-0"]); err == nil && !strings.Contains(string(out), want) {
			err = fmt.Errorf("%s, want %s", out, want)
		}
		return err
	})
	services, _ := d.command("services", "default/web")
	d.checkPartOf(page, "services", "$ kube-nftproxy services default/web\n"+usual(services))
	d.checkPartOf(page, "metrics", "$ "+metrics+"\n"+usual(string(out)))
}
