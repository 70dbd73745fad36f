//go:build e2e

package e2e

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// countedByZone is the flag for counts of connections by zone.
const countedByZone = "--count-connections=zones"

// TestZonesPage compares the section about zones with the output of the program, after 20 connections.
func TestZonesPage(t *testing.T) {
	zoned := func(endpoint, zone string) string { return strings.TrimSuffix(endpoint, "}") + ", zone: " + zone + "}" }
	d := newDesk(t, deskNode+deskService(1, "web", "", "")+deskSlice("web", "s1", deskPort, zoned(readyPod, "a"), zoned(remotePod, "b")), countedByZone)
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

// TestZonesOfTheAPIServer: with objects of the API server, the series of a zone follow its endpoints, also after a pod in another zone has got the address of
// an endpoint.
func TestZonesOfTheAPIServer(t *testing.T) {
	w := newWorld(t, lab.Config{Pods: 1, Remotes: 1})
	in := func(e discoveryv1.Endpoint, zone string) discoveryv1.Endpoint {
		e.Zone = &zone
		return e
	}
	pod, remote := endpoint(w.Pods[0].IPv4), elsewhere(endpoint(w.Remotes[0].IPv4))
	web := slice("web", "web-1", in(pod, "a"), in(remote, "b"))
	w.apply(service("web"), web)
	serve(t, inet.TCP, backendPort, w.Pods[0], w.Remotes[0])
	d := w.start(countedByZone)
	want, zones := map[string]float64{}, map[string]string{w.Pods[0].Name: "a", w.Remotes[0].Name: "b"}
	connect := func() error {
		a := w.Client.Probe(t.Context(), inet.TCP, w.clusterIPs("web")[0], lab.Options{Timeout: patience})
		if a.Outcome != lab.Answered {
			return fmt.Errorf("%s", a)
		}
		want[zones[a.Server]]++
		return nil
	}
	connectAll := func() {
		t.Helper()
		eventually(t, patience, connect)
		for range 20 {
			must(t, connect())
		}
		eventually(t, patience, func() error {
			m, err := d.Metrics(t.Context())
			for zone, n := range want {
				series := fmt.Sprintf("kubenftproxy_service_zone_connections_total{namespace=%q,service=%q,zone=%q}", "default", "web", zone)
				if err == nil && m[series] != n {
					err = fmt.Errorf("%s is %v, want %v", series, m[series], n)
				}
			}
			return err
		})
	}
	connectAll()
	web.Endpoints = []discoveryv1.Endpoint{in(pod, "a")}
	w.apply(web)
	eventually(t, patience, func() error {
		if list := nft(t, w.Node, "list map ip kube-nftproxy endpoints"); strings.Contains(list, w.Remotes[0].IPv4.String()) {
			return errors.New("the endpoint that has left is still in " + list)
		}
		return nil
	})
	web.Endpoints = append(web.Endpoints, in(remote, "c"))
	w.apply(web)
	zones[w.Remotes[0].Name] = "c"
	eventually(t, patience, func() error {
		if err := connect(); err != nil || want["c"] > 0 {
			return err
		}
		return errors.New("no connection reaches the endpoint that is back")
	})
	connectAll()
}
