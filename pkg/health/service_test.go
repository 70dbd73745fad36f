package health

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// freePort returns a port of loopback that nobody listens on.
func freePort(t *testing.T) uint16 {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return uint16(l.Addr().(*net.TCPAddr).Port)
}

// askLoadBalancer returns status, body and weight, or the error of the connection.
func askLoadBalancer(at netip.AddrPort) (status int, body, weight string, err error) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + at.String() + "/whatever")
	if err != nil {
		return 0, "", "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), resp.Header.Get("X-Load-Balancing-Endpoint-Weight"), err
}

func TestServicesAnswerLoadBalancers(t *testing.T) {
	healthy := true
	s := NewServices(func() bool { return healthy }, func(p model.Problem) { t.Errorf("unexpected problem: %+v", p) })
	defer s.Close()
	loopback := []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	web := types.NamespacedName{Namespace: "default", Name: "web"}
	at := netip.AddrPortFrom(loopback[0], freePort(t))
	expect := func(when string, wantStatus int, wantWeight string) {
		t.Helper()
		status, body, weight, err := askLoadBalancer(at)
		if err != nil || status != wantStatus || weight != wantWeight {
			t.Errorf("%s: status %d, weight %q, error %v; want %d, %q", when, status, weight, err, wantStatus, wantWeight)
		}
		want := "{\n\t\"service\": {\n\t\t\"namespace\": \"default\",\n\t\t\"name\": \"web\"\n\t},\n\t\"localEndpoints\": " + wantWeight +
			",\n\t\"serviceProxyHealthy\": " + map[bool]string{true: "true", false: "false"}[healthy] + "\n}"
		if diff := cmp.Diff(want, body); diff != "" {
			t.Errorf("%s: body (-want +got):\n%s", when, diff)
		}
	}
	s.Sync(map[types.NamespacedName]Check{web: {Port: at.Port(), Local: [2]int{2, 0}}}, loopback)
	expect("two endpoints", http.StatusOK, "2")
	s.Sync(map[types.NamespacedName]Check{web: {Port: at.Port()}}, loopback)
	expect("no endpoint", http.StatusServiceUnavailable, "0")
	s.Sync(map[types.NamespacedName]Check{web: {Port: at.Port(), Local: [2]int{1, 0}}}, loopback)
	healthy = false
	expect("rules out of date", http.StatusServiceUnavailable, "1")
	healthy = true
	old := at
	at = netip.AddrPortFrom(loopback[0], freePort(t))
	s.Sync(map[types.NamespacedName]Check{web: {Port: at.Port(), Local: [2]int{1, 0}}}, loopback)
	expect("on another port", http.StatusOK, "1")
	if _, _, _, err := askLoadBalancer(old); err == nil {
		t.Error("the old port still answers")
	}
	s.Sync(nil, loopback)
	if _, _, _, err := askLoadBalancer(at); err == nil {
		t.Error("a Service that has gone still answers")
	}
}

func TestATakenPortIsReportedOnceAndTriedAgain(t *testing.T) {
	var problems []model.Problem
	s := NewServices(func() bool { return true }, func(p model.Problem) { problems = append(problems, p) })
	defer s.Close()
	taken := true
	s.listen = func(network, address string) (net.Listener, error) {
		if taken {
			return nil, errors.New("address in use")
		}
		return net.Listen(network, address)
	}
	loopback := netip.MustParseAddr("127.0.0.1")
	at := netip.AddrPortFrom(loopback, freePort(t))
	web := types.NamespacedName{Namespace: "default", Name: "web"}
	checks := map[types.NamespacedName]Check{web: {Port: at.Port(), Local: [2]int{1, 0}}}
	for range 3 {
		if broken := s.Sync(checks, []netip.Addr{loopback}); broken != 1 {
			t.Errorf("%d ports can't be listened on, want 1", broken)
		}
	}
	if len(problems) != 1 || problems[0].Name != web || problems[0].Event != "FailedToStartServiceHealthcheck" {
		t.Errorf("problems: %+v, want one of default/web", problems)
	}
	taken = false
	if broken := s.Sync(checks, []netip.Addr{loopback}); broken != 0 {
		t.Errorf("%d ports can't be listened on, want none", broken)
	}
	if status, _, _, err := askLoadBalancer(at); err != nil || status != http.StatusOK {
		t.Errorf("status %d, error %v after the port became free", status, err)
	}
}
