package health

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/descriptors"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// freePort returns an unused port of loopback.
func freePort(t *testing.T) uint16 {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	lab.Must(t, err)
	defer l.Close()
	return uint16(l.Addr().(*net.TCPAddr).Port)
}

// both has the served families of a dual-stack Service.
var both = [2]bool{true, true}

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

// newServices returns Services of a healthy proxy.
func newServices(failed func(model.Problem)) *Services {
	return NewServices(ServicesConfig{
		Healthy: func() bool { return true }, Failed: failed, Withdraw: func(model.Problem) {}, Files: descriptors.New(),
	})
}

// unexpected fails the test for each problem.
func unexpected(t *testing.T) func(model.Problem) {
	return func(p model.Problem) { t.Errorf("unexpected problem: %+v", p) }
}

func TestServicesAnswerLoadBalancers(t *testing.T) {
	healthy := true
	s := newServices(unexpected(t))
	s.Healthy = func() bool { return healthy }
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
		lab.Same(t, want, body, "%s: body", when)
	}
	sync := func(local int) {
		s.Sync(map[types.NamespacedName]Check{web: {Port: at.Port(), Served: both, Local: [2]int{local, 7}}}, loopback)
	}
	sync(2)
	expect("two endpoints", http.StatusOK, "2")
	sync(0)
	expect("no endpoint", http.StatusServiceUnavailable, "0")
	sync(1)
	healthy = false
	expect("rules out of date", http.StatusServiceUnavailable, "1")
	healthy = true
	old := at
	at = netip.AddrPortFrom(loopback[0], freePort(t))
	sync(1)
	expect("on another port", http.StatusOK, "1")
	if _, _, _, err := askLoadBalancer(old); err == nil {
		t.Error("the old port still answers")
	}
	s.Sync(nil, loopback)
	if _, _, _, err := askLoadBalancer(at); err == nil {
		t.Error("a deleted Service still answers")
	}
}

func TestATakenPortIsReportedOnceAndTriedAgain(t *testing.T) {
	var problems, withdrawn []model.Problem
	s := NewServices(ServicesConfig{
		Healthy: func() bool { return true }, Failed: func(p model.Problem) { problems = append(problems, p) },
		Withdraw: func(p model.Problem) { withdrawn = append(withdrawn, p) }, Files: descriptors.New(),
	})
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
	checks := map[types.NamespacedName]Check{web: {Port: at.Port(), Served: both, Local: [2]int{1, 0}}}
	for range 3 {
		lab.Same(t, 1, s.Sync(checks, []netip.Addr{loopback}), "failed addresses")
	}
	if len(problems) != 1 || problems[0].Name != web || problems[0].Event != "FailedToStartServiceHealthcheck" {
		t.Errorf("problems: %+v, want one of default/web", problems)
	}
	if why := s.Broken(web); len(why) != 1 || !strings.HasPrefix(why[0], "address in use (ss -ltnp ") || s.Broken(types.NamespacedName{Name: "other"}) != nil {
		t.Errorf("Broken(default/web) = %q, want \"address in use\" and a remedy", why)
	}
	taken = false
	if broken := s.Sync(checks, []netip.Addr{loopback}); broken != 0 || s.Broken(web) != nil {
		t.Errorf("%d failed addresses (%q), want none", broken, s.Broken(web))
	}
	if status, _, _, err := askLoadBalancer(at); err != nil || status != http.StatusOK {
		t.Errorf("status %d, error %v after the port became free", status, err)
	}
	lab.Same(t, problems, withdrawn, "withdrawn problems")
}

// ports records the addresses of listeners, and opens other ports instead.
type ports struct {
	// taken is an address that cannot be opened.
	taken string
	mu    sync.Mutex
	open  map[string]int
}

func (p *ports) listen(network, address string) (net.Listener, error) {
	if address == p.taken {
		return nil, errors.New("address in use")
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p.add(network+" "+address, 1)
	return &port{Listener: l, closed: sync.OnceFunc(func() { p.add(network+" "+address, -1) })}, nil
}

func (p *ports) add(at string, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open[at] += n; p.open[at] == 0 {
		delete(p.open, at)
	}
}

// list returns the number of listeners by address.
func (p *ports) list() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.open)
}

// port is a listener that records its Close.
type port struct {
	net.Listener
	closed func()
}

func (p *port) Close() error {
	p.closed()
	return p.Listener.Close()
}

// recording returns Services with recorded addresses.
func recording(t *testing.T, failed func(model.Problem)) (*Services, *ports) {
	p := &ports{open: map[string]int{}}
	s := newServices(failed)
	s.listen = p.listen
	t.Cleanup(s.Close)
	return s, p
}

func addresses(list ...string) (out []netip.Addr) {
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func TestWhereServicesListen(t *testing.T) {
	web, mail := types.NamespacedName{Namespace: "default", Name: "web"}, types.NamespacedName{Namespace: "default", Name: "mail"}
	s, ports := recording(t, unexpected(t))
	for _, step := range []struct {
		name   string
		checks map[types.NamespacedName]Check
		addrs  []netip.Addr
		want   map[string]int
	}{
		{"at the only address of IPv6", map[types.NamespacedName]Check{web: {Port: 1, Served: both}}, addresses("192.0.2.1", "192.0.2.2", "2001:db8::1"),
			map[string]int{"tcp4 0.0.0.0:1": 1, "tcp6 [2001:db8::1]:1": 1}},
		{"one address replaces another", map[types.NamespacedName]Check{web: {Port: 1, Served: both}}, addresses("192.0.2.3", "2001:db8::1"),
			map[string]int{"tcp4 192.0.2.3:1": 1, "tcp6 [2001:db8::1]:1": 1}},
		{"all addresses", map[types.NamespacedName]Check{web: {Port: 1, Served: both}}, addresses("0.0.0.0", "::"),
			map[string]int{"tcp4 0.0.0.0:1": 1, "tcp6 [::]:1": 1}},
		{"one family", map[types.NamespacedName]Check{web: {Port: 1, Served: [2]bool{true, false}}}, addresses("192.0.2.1", "2001:db8::1"),
			map[string]int{"tcp4 192.0.2.1:1": 1}},
		{"the other family", map[types.NamespacedName]Check{web: {Port: 1, Served: [2]bool{false, true}}}, addresses("192.0.2.1", "2001:db8::1"),
			map[string]int{"tcp6 [2001:db8::1]:1": 1}},
		{"none", map[types.NamespacedName]Check{web: {Port: 1}}, addresses("192.0.2.1", "2001:db8::1"), map[string]int{}},
		{"two Services", map[types.NamespacedName]Check{web: {Port: 1, Served: both}, mail: {Port: 2, Served: both}}, addresses("192.0.2.1"),
			map[string]int{"tcp4 192.0.2.1:1": 1, "tcp4 192.0.2.1:2": 1}},
		{"they exchange their ports", map[types.NamespacedName]Check{web: {Port: 2, Served: both}, mail: {Port: 1, Served: both}},
			addresses("192.0.2.1"), map[string]int{"tcp4 192.0.2.1:1": 1, "tcp4 192.0.2.1:2": 1}},
		{"no address", map[types.NamespacedName]Check{web: {Port: 2, Served: both}}, nil, map[string]int{}},
	} {
		s.Sync(step.checks, step.addrs)
		lab.Same(t, step.want, ports.list(), "%s: listening", step.name)
	}
}

// If a port is in use at one address, the other addresses serve it. Its Service gets one problem. If its port changes
// to another one that is in use, the Service gets another problem.
func TestATakenAddressDoesNotStopOthers(t *testing.T) {
	web, mail := types.NamespacedName{Namespace: "default", Name: "web"}, types.NamespacedName{Namespace: "default", Name: "mail"}
	var reported []string
	s, ports := recording(t, func(p model.Problem) { reported = append(reported, p.Name.Name) })
	checks := map[types.NamespacedName]Check{web: {Port: 1, Served: both}, mail: {Port: 2, Served: both}}
	addrs := addresses("192.0.2.1", "2001:db8::1")
	expect := func(when string, wantBroken int, wantReported []string, want map[string]int) {
		t.Helper()
		lab.Same(t, wantBroken, s.Sync(checks, addrs), "%s: failed addresses", when)
		lab.Same(t, wantReported, reported, "%s: problems", when)
		lab.Same(t, want, ports.list(), "%s: listening", when)
	}
	others := map[string]int{"tcp4 192.0.2.1:2": 1, "tcp6 [2001:db8::1]:1": 1, "tcp6 [2001:db8::1]:2": 1}
	ports.taken = "192.0.2.1:1"
	expect("taken", 1, []string{"web"}, others)
	expect("still taken", 1, []string{"web"}, others)
	ports.taken = ""
	all := map[string]int{"tcp4 192.0.2.1:1": 1, "tcp4 192.0.2.1:2": 1, "tcp6 [2001:db8::1]:1": 1, "tcp6 [2001:db8::1]:2": 1}
	expect("free", 0, []string{"web"}, all)
	ports.taken = "192.0.2.1:3"
	checks[web] = Check{Port: 3, Served: both}
	others["tcp6 [2001:db8::1]:3"] = 1
	delete(others, "tcp6 [2001:db8::1]:1")
	expect("another port is in use", 1, []string{"web", "web"}, others)
	delete(checks, web)
	expect("the Service is deleted", 0, []string{"web", "web"}, map[string]int{"tcp4 192.0.2.1:2": 1, "tcp6 [2001:db8::1]:2": 1})
}

// Each Sync retries at most a hundred failed addresses, and opens new ones immediately. So many failures do not block
// the loop, which calls Sync twice a second.
func TestManyPortsThatAreTaken(t *testing.T) {
	reported := 0
	s, ports := recording(t, func(model.Problem) { reported++ })
	tries := 0
	free := false
	s.listen = func(network, address string) (net.Listener, error) {
		if tries++; !free {
			return nil, errors.New("cannot assign requested address")
		}
		return ports.listen(network, address)
	}
	const services, addrs, mostTries = 300, 2, 100
	checks := map[types.NamespacedName]Check{}
	for i := range services {
		checks[types.NamespacedName{Namespace: fmt.Sprint(i), Name: "web"}] = Check{Port: uint16(1 + i), Served: both}
	}
	sync := func(wantTries, wantBroken int) {
		t.Helper()
		tries = 0
		if broken := s.Sync(checks, addresses("192.0.2.1", "2001:db8::1")); tries != wantTries || broken != wantBroken {
			t.Errorf("%d attempts, %d failed addresses; want %d, %d", tries, broken, wantTries, wantBroken)
		}
	}
	sync(services*addrs, services*addrs)
	sync(mostTries, services*addrs)
	checks[types.NamespacedName{Name: "new"}] = Check{Port: 1000, Served: both}
	sync(mostTries+addrs, services*addrs+addrs)
	lab.Same(t, services+1, reported, "problems were reported")
	free = true
	for left := services*addrs + addrs; left > 0; {
		now := max(left-mostTries, 0)
		sync(min(left, mostTries), now)
		left = now
	}
}

// TestTheCostIsASum: 400 addresses of the node and 50 Services cost 50 sockets.
func TestTheCostIsASum(t *testing.T) {
	s, ports := recording(t, unexpected(t))
	var addrs []netip.Addr
	checks := map[types.NamespacedName]Check{}
	for i := range 400 {
		addrs = append(addrs, netip.AddrFrom4([4]byte{192, 0, byte(i / 200), byte(i % 200)}))
	}
	for i := range 50 {
		checks[types.NamespacedName{Namespace: "evil", Name: fmt.Sprint(i)}] = Check{Port: uint16(1 + i), Served: both}
	}
	s.Sync(checks, addrs)
	if n := len(ports.list()); n != len(checks) || s.Files.Taken() != len(checks) {
		t.Errorf("%d sockets, %d descriptors, want %d", n, s.Files.Taken(), len(checks))
	}
	s.Close()
	if n := len(ports.list()); n > 0 || s.Files.Taken() > 0 {
		t.Errorf("%d sockets, %d descriptors are left", n, s.Files.Taken())
	}
}

// TestChecksAnswerOnlyAtTheirAddresses: the socket at all addresses closes connections to addresses that serve no
// checks, after each change of them.
func TestChecksAnswerOnlyAtTheirAddresses(t *testing.T) {
	s := newServices(unexpected(t))
	defer s.Close()
	web, port := types.NamespacedName{Namespace: "default", Name: "web"}, freePort(t)
	all := addresses("127.0.0.2", "127.0.0.3", "127.0.0.4")
	for _, step := range [][]netip.Addr{{all[0], all[1]}, {all[1], all[2]}, all, {all[2]}, {all[0], all[1]}} {
		s.Sync(map[types.NamespacedName]Check{web: {Port: port, Served: both, Local: [2]int{1, 0}}}, step)
		for _, a := range all {
			status, _, _, err := askLoadBalancer(netip.AddrPortFrom(a, port))
			if answers := err == nil && status == http.StatusOK; answers != slices.Contains(step, a) {
				t.Errorf("served at %v: %v answers %v (%d, %v)", step, a, answers, status, err)
			}
		}
	}
}

// TestTheOlderServiceGetsThePort: if two Services have one port, the older one gets it, in any order of changes. The
// other one is reported, and gets the port when it is free.
func TestTheOlderServiceGetsThePort(t *testing.T) {
	old, young := types.NamespacedName{Namespace: "shop", Name: "z-old"}, types.NamespacedName{Namespace: "shop", Name: "a-young"}
	stranger := types.NamespacedName{Namespace: "bank", Name: "younger"}
	of := func(created int64) Check {
		return Check{Port: 1, Created: time.Unix(created, 0), Served: [2]bool{true, false}}
	}
	const again = " (delete one of the two Services and create it again, so that it gets another port)"
	all := map[types.NamespacedName]Check{old: of(1), young: of(2), stranger: of(3)}
	for _, first := range []types.NamespacedName{old, young, stranger} {
		var reported []types.NamespacedName
		s, ports := recording(t, func(p model.Problem) { reported = append(reported, p.Name) })
		at := addresses("192.0.2.1")
		s.Sync(map[types.NamespacedName]Check{first: all[first]}, at)
		if broken := s.Sync(all, at); broken != 2 || s.Broken(old) != nil || ports.list()["tcp4 192.0.2.1:1"] != 1 {
			t.Errorf("%v first: %d failures, %q, %v", first, broken, s.Broken(old), ports.list())
		}
		lab.Same(t, []string{"the older Service z-old has the same health check node port" + again}, s.Broken(young), "reason of the young one")
		lab.Same(t, []string{"an older Service of another namespace has the same health check node port" + again}, s.Broken(stranger), "reason of the stranger")
		lab.Same(t, 2, len(reported), "%v first: reported %v", first, reported)
		s.Sync(map[types.NamespacedName]Check{young: all[young], stranger: all[stranger]}, at)
		if s.Broken(young) != nil || s.Broken(stranger) == nil || len(reported) != 2 {
			t.Errorf("%v first, without the old one: %q, %q, reported %v", first, s.Broken(young), s.Broken(stranger), reported)
		}
	}
}

// TestNoNamespaceTakesAllDescriptors: a namespace gets its share, older Services first. The rest is reported, with the
// limit, and gets descriptors when there is room. Other namespaces get theirs.
func TestNoNamespaceTakesAllDescriptors(t *testing.T) {
	var reported []model.Problem
	s, ports := recording(t, func(p model.Problem) { reported = append(reported, p) })
	s.Files = descriptors.Of(1024)
	const services, share = 300, 24
	checks, at := map[types.NamespacedName]Check{}, addresses("192.0.2.1")
	add := func(namespace string, n int) types.NamespacedName {
		name := types.NamespacedName{Namespace: namespace, Name: fmt.Sprint(n)}
		checks[name] = Check{Port: uint16(1 + len(checks)), Created: time.Unix(int64(n), 0), Served: both}
		return name
	}
	for i := range services {
		add("evil", i)
	}
	if broken := s.Sync(checks, at); broken != services-share || len(ports.list()) != share || len(reported) != broken {
		t.Errorf("%d failures, %d sockets, %d reports, want %d sockets", broken, len(ports.list()), len(reported), share)
	}
	if p := reported[0]; !strings.Contains(p.Reason, "namespace evil has used its share") || !strings.Contains(p.Fix, "limit of open files") {
		t.Errorf("reported %+v, want the limit", p)
	}
	for i := range share {
		if name := (types.NamespacedName{Namespace: "evil", Name: fmt.Sprint(i)}); s.Broken(name) != nil {
			t.Errorf("%s is one of the oldest: %q", name, s.Broken(name))
		}
	}
	for i := range 20 {
		if name := add(fmt.Sprint("n", i), services+i); s.Sync(checks, at) != services-share || s.Broken(name) != nil {
			t.Errorf("%s gets no descriptor: %q", name, s.Broken(name))
		}
	}
	for i := range share {
		delete(checks, types.NamespacedName{Namespace: "evil", Name: fmt.Sprint(i)})
	}
	s.Sync(checks, at)
	if broken := s.Sync(checks, at); broken != services-2*share || len(ports.list()) != share+20 {
		t.Errorf("%d failures, %d sockets after others were closed, want %d sockets", broken, len(ports.list()), share+20)
	}
	if s.Sync(nil, at); s.Files.Taken() != 0 {
		t.Errorf("%d descriptors are taken", s.Files.Taken())
	}
}

// TestTheProgramAnswersAtTheLimit runs in a process of its own that may open few files. Services of many namespaces
// have more health check node ports than that. The program still answers, and it opens files.
func TestTheProgramAnswersAtTheLimit(t *testing.T) {
	const variable, files, namespaces, services = "HEALTH_TEST_FILES", 256, 40, 20
	if os.Getenv(variable) == "" {
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestTheProgramAnswersAtTheLimit$", "-test.v")
		child.Env = append(os.Environ(), variable+"=1")
		if out, err := child.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	lab.Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: files, Max: files}))
	reported := 0
	s := newServices(func(model.Problem) { reported++ })
	healthz := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), freePort(t))
	go func() {
		_ = Serve(t.Context(), healthz.String(), http.NotFoundHandler(), RetryInterval, false, func(error) {})
	}()
	held := make([]net.Conn, 0, files)
	answers := func(when string) {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			if status, _, _, err := askLoadBalancer(healthz); err == nil && status == http.StatusNotFound {
				break
			} else if time.Now().After(deadline) {
				t.Fatalf("%s: %d, %v", when, status, err)
			}
		}
		f, err := os.Open(os.Args[0])
		lab.Must(t, err)
		lab.Must(t, f.Close())
	}
	answers("at the start")
	checks, at := map[types.NamespacedName]Check{}, addresses("127.0.0.1")
	for i := range namespaces * services {
		checks[types.NamespacedName{Namespace: fmt.Sprint("n", i%namespaces), Name: fmt.Sprint(i)}] = Check{Port: uint16(30_000 + i), Served: both}
	}
	s.Sync(checks, at)
	if s.Files.Taken() != files/2 || reported < len(checks)-files/2 {
		t.Errorf("%d descriptors are taken, %d Services reported; want %d, all others", s.Files.Taken(), reported, files/2)
	}
	for range 2 * descriptors.Clients() { // the client is the same process, so it needs as many files as the server
		c, err := net.Dial("tcp4", healthz.String())
		if err != nil {
			break
		}
		if held = append(held, c); len(held) > descriptors.Clients() {
			_ = held[0].Close()
			held = held[1:]
		}
	}
	answers("at the limit")
	s.Close()
	answers("afterwards")
	for _, c := range held {
		_ = c.Close()
	}
	for name := range checks {
		if s.Sync(map[types.NamespacedName]Check{name: checks[name]}, at); s.Broken(name) == nil {
			return
		}
	}
	t.Error("no health check is served afterwards")
}

// A change of only the numbers of endpoints causes no work for sockets, of which there may be thousands.
func TestChangedCountsCostNoWorkForSockets(t *testing.T) {
	s, _ := recording(t, unexpected(t))
	addrs, checks := addresses("192.0.2.1", "2001:db8::1"), map[types.NamespacedName]Check{}
	for i := range 1000 {
		checks[types.NamespacedName{Namespace: fmt.Sprint(i), Name: "web"}] = Check{Port: uint16(1 + i), Served: both}
	}
	web := types.NamespacedName{Namespace: "7", Name: "web"}
	s.Sync(checks, addrs)
	most := 2 + lab.Allocations(func() { s.checks = maps.Clone(checks) })
	local := 0
	if n := lab.Allocations(func() {
		local++
		checks[web] = Check{Port: 8, Served: both, Local: [2]int{local, 0}}
		s.Sync(checks, addrs)
	}); n > most {
		t.Errorf("%v allocations, want %v, as many as for the copy of the checks", n, most)
	}
	if got := s.checks[web].Local; got != [2]int{local, 0} {
		t.Errorf("%v local endpoints, want %d", got, local)
	}
}

// BenchmarkBroken describes the failures of all Services, as the command services does. Each of them lacks a descriptor.
func BenchmarkBroken(b *testing.B) {
	for _, n := range []int{500, 4000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := newServices(func(model.Problem) {})
			s.Files = descriptors.Of(0)
			checks := map[types.NamespacedName]Check{}
			for i := range n {
				name := types.NamespacedName{Namespace: fmt.Sprint("tenant-", i%64), Name: fmt.Sprint("web-", i)}
				checks[name] = Check{Port: uint16(30_000 + i), Served: both}
			}
			s.Sync(checks, []netip.Addr{netip.MustParseAddr("192.0.2.1")})
			b.ReportAllocs()
			for b.Loop() {
				for name := range checks {
					if len(s.Broken(name)) != 1 {
						b.Fatalf("%s has no failure", name)
					}
				}
			}
		})
	}
}
