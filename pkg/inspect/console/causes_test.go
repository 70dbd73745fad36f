package console

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/config"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/settings"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

func TestSimilarNames(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"web", "web", true}, {"web", "wbe", true}, {"web", "webs", true}, {"web", "weg", true}, {"checkout", "checkout-v2", true}, {"frontend", "fronted", true},
		{"web", "api", false}, {"web", "bew", false}, {"a", "ab", true}, {"ab", "abcd", false}, {"", "web", false},
	} {
		if got := nearly(c.a, c.b); got != c.want || nearly(c.b, c.a) != got {
			t.Errorf("nearly(%q, %q) = %v, want %v both ways", c.a, c.b, got, c.want)
		}
	}
}

func TestWhyListsFail(t *testing.T) {
	slices := schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}
	for _, c := range []struct {
		name string
		err  error
		want view.WatchFailure
	}{
		{"forbidden", fmt.Errorf("failed to list: %w", apierrors.NewForbidden(slices, "", errors.New("User \"u\" cannot"))),
			view.WatchFailure{Error: "endpointslices.discovery.k8s.io is forbidden: User \"u\" cannot", Forbidden: true}},
		{"unauthorized", apierrors.NewUnauthorized("Unauthorized"), view.WatchFailure{Error: "Unauthorized", Unauthorized: true}},
		{"without its address", fmt.Errorf("failed to list: %w", &url.Error{Op: "Get", URL: "https://a:secret@10.0.0.1/api?x=y", Err: errors.New("connection refused")}),
			view.WatchFailure{Error: "connection refused", Unanswered: true}},
		{"without secrets", errors.New("ask https://a:secret@10.0.0.1/api: no"), view.WatchFailure{Error: "ask https://10.0.0.1/api: no"}},
	} {
		var got view.WatchFailure
		whyFailed(&got, c.err)
		lab.Same(t, c.want, got, "%s", c.name)
	}
}

func TestFailuresWithTheSameFixAreOneFinding(t *testing.T) {
	list := []view.WatchFailure{
		{Resource: "a", Error: "a is forbidden", Forbidden: true}, {Resource: "b", Error: "no route"}, {Resource: "c", Error: "c is forbidden", Forbidden: true},
		{Resource: "d", Error: "no route"}, {Resource: "e", Error: "refused"},
		{Resource: "f", Error: "refused", Over: true},
	}
	var got [][]string
	for _, g := range alikeFailures(list) {
		var names []string
		for _, f := range g {
			names = append(names, f.Resource)
		}
		got = append(got, names)
	}
	lab.Same(t, [][]string{{"a", "c"}, {"b", "d"}, {"e"}, {"f"}}, got, "")
}

// TestUnmetConfiguration: a gate of another version is a finding, and an intended difference is none.
func TestUnmetConfiguration(t *testing.T) {
	got := unmet([]config.Note{{Subject: "mode", Text: "Services are served by nftables"}, {Subject: "featureGates.New", Text: "unknown", Finding: true}}, "file x")
	if len(got) != 1 || got[0].Severity != view.Warning || got[0].What != "configuration, featureGates.New: unknown" {
		t.Errorf("findings %+v", got)
	}
}

// TestRivals distinguishes a conflict from a replacement of the program, and from other programs' changes.
func TestRivals(t *testing.T) {
	now := time.Now()
	repair := func(ago time.Duration, program string) view.Repair {
		return view.Repair{Time: now.Add(-ago), By: program + " (pid 7)", Program: program}
	}
	const other = "kube-nftproxy"
	for _, c := range []struct {
		name    string
		repairs []view.Repair
		want    view.Reason
	}{
		{"a conflict", []view.Repair{repair(3*time.Second, other), repair(2*time.Second, other), repair(time.Second, other)}, view.TablesFoughtOver},
		{"a replacement", []view.Repair{repair(3*time.Second, other), repair(2*time.Second, other)}, ""},
		{"long ago", []view.Repair{repair(time.Hour, other), repair(time.Hour, other), repair(time.Second, other)}, ""},
		{"another program", []view.Repair{repair(3*time.Second, "nft"), repair(2*time.Second, "nft"), repair(time.Second, "nft")}, view.TablesTouched},
		{"a reload or two", []view.Repair{repair(3*time.Second, "nft"), repair(2*time.Second, "nft")}, ""},
		{"failed syncs", []view.Repair{{Time: now, Reason: "failed_sync"}, {Time: now, Reason: "failed_sync"}, {Time: now, Reason: "failed_sync"}}, ""},
	} {
		got := (&Console{Parts: Parts{Settings: &settings.Settings{NodeName: "n"}}}).rivals(&view.Status{Time: now, Loop: &view.Loop{Repairs: c.repairs}})
		if len(got) > 1 || (len(got) == 1) != (c.want != "") || len(got) == 1 && got[0].Reason != c.want {
			t.Errorf("%s: %+v, want %q", c.name, got, c.want)
		}
	}
}

// TestPermissions: the fix binds the smallest role to the program's user, and never binds a role to an anonymous user.
func TestPermissions(t *testing.T) {
	for user, want := range map[string]string{
		"half-blind": "kubectl create clusterrolebinding kube-nftproxy-half-blind --clusterrole=system:node-proxier --user=half-blind",
		"system:serviceaccount:kube-system:kube-nftproxy": "kubectl create clusterrolebinding kube-nftproxy-serviceaccount-kube-system-kube-nftproxy " +
			"--clusterrole=system:node-proxier --serviceaccount=kube-system:kube-nftproxy",
		"system:anonymous": "the API server does not know this program: put a token or a client certificate into the kubeconfig",
		"":                 "the API server does not know this program: put a token or a client certificate into the kubeconfig",
		"a; rm -rf /":      `bind the ClusterRole system:node-proxier to the user "a; rm -rf /"`,
	} {
		if got, affects := permitUser(user); got != want || affects == "" {
			t.Errorf("%q: %q, %q; want %q", user, got, affects, want)
		}
	}
}

// TestAPIOutage: the texts about an API server that does not answer are true whether it has answered before or not, and whether rules of a previous
// process serve or not.
func TestAPIOutage(t *testing.T) {
	refused := &url.Error{Op: "Get", URL: "https://10.0.0.1/api", Err: errors.New("connection refused")}
	untrusted := &url.Error{Op: "Get", URL: "https://10.0.0.1/api", Err: &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}}
	const serves = "the rules of the previous process keep serving, without changes"
	for _, c := range []struct {
		name        string
		waits       string
		answered    bool
		earlier     bool
		cannotKnow  error
		err         error
		impact, fix string
	}{
		{"while it serves", "", true, true, nil, refused, "the rules stay as they are and keep serving", "none on this node, if the control plane is down"},
		{"after a restart", "for objects", false, true, nil, refused, serves, "if the control plane is down, none on this node. Otherwise, correct the address in the kubeconfig"},
		{"on a new node", "for objects", false, false, nil, refused, "no Service is served on this node: there are no rules of a previous process", "if the control plane is down"},
		{"a wrong authority", "for objects", false, true, nil, untrusted, serves, "correct the certificate authority"},
		{"the kernel does not answer", "for objects", false, false, errors.New("no"), refused, "this process has programmed no Service yet", "if the control plane is down"},
	} {
		a := NewAPI(func() (string, string) { return "https://10.0.0.1", "" }, nil, nil)
		if c.answered {
			a.Succeeded("services")
		}
		for _, resource := range []string{"services", "endpointslices", "nodes"} {
			a.Failed(resource, c.err)
		}
		con := &Console{Parts: Parts{Settings: &settings.Settings{NodeName: "n"}, API: a, Earlier: func() (bool, error) { return c.earlier, c.cannotKnow }}}
		s := &view.Status{Time: time.Now(), API: a.recorded(), Loop: &view.Loop{Waits: c.waits}}
		s.API.Answers, s.API.Error, s.API.Remedy = answersOf(s.API.Failures, s.Time)
		list := con.unread(s, nil)
		if len(list) != 1 || list[0].Reason != view.APIServerUnreachable || !strings.HasPrefix(list[0].Impact, c.impact) || !strings.HasPrefix(list[0].Fix, c.fix) {
			t.Errorf("%s: %+v", c.name, list)
		}
		if s.API.Since == nil || s.API.Answered != c.answered {
			t.Errorf("%s: %+v", c.name, s.API)
		}
	}
}

// TestServerErrors: an API server that answers with errors is not one that does not answer, and is no problem yet while the watches are open. A failure
// that is over is a note.
func TestServerErrors(t *testing.T) {
	broken := apierrors.NewInternalError(errors.New("etcd"))
	strange := errors.New("failed to list *v1.Service: serializer for text/html doesn't exist") // of client-go
	for _, c := range []struct {
		name   string
		failed error
		over   bool
		state  string
		want   view.Severity
		reason view.Reason
		what   string
	}{
		{"it reports an error", nil, false, "etcd failed", view.Warning, view.APIServerFailing, "the API server reports an error: etcd failed"},
		{"and watches fail", broken, false, "etcd failed", view.Wrong, view.APIServerFailing, "the API server answers with an error: etcd failed"},
		{"and watches are open again", broken, true, "etcd failed", view.Warning, view.APIServerFailing, "the API server reports an error: etcd failed"},
		{"only watches fail", broken, false, "", view.Warning, view.WatchFailing, "cannot read services: "},
		{"a portal answers", strange, false, "", view.Warning, view.WatchFailing, `cannot read services: the answer has the content type "text/html"`},
		{"after the recovery", broken, true, "", view.Note, view.WatchFailing, "reading services failed 0s ago, and works again: "},
	} {
		a := NewAPI(func() (string, string) { return "https://10.0.0.1", "" }, nil, nil)
		if c.failed != nil {
			a.Failed("services", c.failed)
		}
		if c.over {
			a.Succeeded("services")
		}
		con := &Console{Parts: Parts{Settings: &settings.Settings{NodeName: "n"}, API: a}}
		s := &view.Status{Time: time.Now(), API: a.recorded(), Loop: &view.Loop{}}
		s.API.Answers, s.API.Error = true, c.state
		list := con.unread(s, nil)
		if len(list) != 1 || list[0].Severity != c.want || list[0].Reason != c.reason || !strings.HasPrefix(list[0].What, c.what) {
			t.Errorf("%s: %+v", c.name, list)
		}
	}
}

// TestRemedies: a request that no API server has received has a fix of its own.
func TestRemedies(t *testing.T) {
	failed := func(err error) error { return &url.Error{Op: "Get", URL: "https://10.0.0.1", Err: err} }
	expired := x509.CertificateInvalidError{Reason: x509.Expired}
	for want, err := range map[string]error{
		"":                                 failed(&net.OpError{Op: "dial", Err: errors.New("refused")}),
		"if the clock of this node is":     failed(&tls.CertificateVerificationError{Err: expired}),
		"correct the certificate author":   failed(&tls.CertificateVerificationError{Err: x509.HostnameError{}}),
		"correct the address in the kube":  failed(tls.RecordHeaderError{}),
		"correct the token in the kubecon": failed(errors.New(`net/http: invalid header field value for "Authorization"`)),
		"correct the client certificate i": failed(&net.OpError{Op: "remote error", Err: tls.AlertError(116)}),
	} {
		if got := remedy(err); !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
}

// TestServiceHasTheAddressOfTheAPIServer: the cause of an outage is the Service that gets the requests.
func TestServiceHasTheAddressOfTheAPIServer(t *testing.T) {
	at := func(kind model.Kind, address string) *model.Service {
		f := model.Frontend{Kind: kind}
		f.Protocol, f.Addr, f.Port = inet.TCP, netip.MustParseAddr(address), 6443
		return &model.Service{Ports: []*model.ServicePort{{Frontends: []model.Frontend{f}}}}
	}
	for _, c := range []struct {
		service *model.Service
		server  string
		want    bool
	}{
		{at(model.ExternalIP, "192.0.2.7"), "https://192.0.2.7:6443", true}, {at(model.LoadBalancer, "fd00::7"),
			"https://[fd00::7]:6443/x", true},
		{at(model.ExternalIP, "192.0.2.7"), "https://192.0.2.7", false}, {at(model.ExternalIP, "192.0.2.8"),
			"https://192.0.2.7:6443", false},
		{at(model.ClusterIP, "192.0.2.7"), "https://192.0.2.7:6443", false}, {at(model.ExternalIP, "192.0.2.7"),
			"https://api:6443", false},
		{at(model.ExternalIP, "192.0.2.7"), "manifests in /m", false},
	} {
		if got := takes(c.service, serverAt(c.server)); got != c.want {
			t.Errorf("%s, %+v: %t", c.server, c.service.Ports[0].Frontends, got)
		}
	}
	con := &Console{Parts: Parts{Settings: &settings.Settings{NodeName: "n"}}}
	s := &view.Status{Time: time.Now(), API: view.API{TakenBy: "a/b", Error: "no TLS",
		Remedy: "correct the kubeconfig"}, Loop: &view.Loop{}}
	list := con.unread(s, nil)
	if len(list) != 1 || list[0].Reason != view.APIServerUnreachable || !strings.HasPrefix(list[0].What,
		"Service a/b has the address of the API server") ||
		!strings.Contains(list[0].Fix, "of Service a/b. The program on node n cannot") {
		t.Errorf("findings %+v", list)
	}
	s.API.Remedy, s.API.Error, s.API.Answers = "", "", true
	if list := con.unread(s, nil); len(list) > 0 {
		t.Errorf("while it answers: %+v", list)
	}
}

// TestPodsBehindOtherInterfaces: a pod is recognised by the whole name of its interface, or by a prefix.
func TestPodsBehindOtherInterfaces(t *testing.T) {
	bridge, prefix := plan.LocalPods{Interface: "cni0"}, plan.LocalPods{Interface: "cali", InterfacePrefix: true}
	for _, c := range []struct {
		of     plan.LocalPods
		device string
		want   bool
	}{
		{bridge, "cni0", false}, {bridge, "cni01", true}, {bridge, "veth0", true}, {prefix, "cali12", false}, {prefix,
			"cal", true}, {prefix, "eni1", true},
		{plan.LocalPods{}, "eth0", false},
	} {
		if got := isOther(c.of, c.device); got != c.want {
			t.Errorf("%+v, %s: %t", c.of, c.device, got)
		}
	}
}

// TestFolderHasNoAPIServer: without an API server, none of its findings apply.
func TestFolderHasNoAPIServer(t *testing.T) {
	con := &Console{Parts: Parts{Settings: &settings.Settings{NodeName: "n"}}}
	s := &view.Status{Time: time.Now(), API: view.API{Source: "manifests in /m", Answers: true}, Loop: &view.Loop{}}
	if list := con.unread(s, nil); len(list) > 0 {
		t.Errorf("findings %+v", list)
	}
}

// TestPortsThatCannotBeOpened: the fix for an address that the node does not have is not to stop a process.
func TestPortsThatCannotBeOpened(t *testing.T) {
	con := &Console{Parts: Parts{Settings: &settings.Settings{NodeName: "n"}}}
	for text, want := range map[string]string{
		"address already in use": "on node n: ss -ltnp sport = :10256 shows the process",
		"cannot assign requested address": "on node n: add the address 192.0.2.7 to an interface, " +
			"or set another healthzBindAddress",
	} {
		list := con.unbound(&view.Status{Ports: []view.Port{{Name: "healthz", Address: "192.0.2.7:10256", Error: text}}})
		if len(list) != 1 || list[0].Reason != view.PortNotBound || !strings.HasPrefix(list[0].Fix, want) {
			t.Errorf("%s: %+v, want the fix %q", text, list, want)
		}
	}
}

// TestTokenFiles: the reason why a token file is of no use is in the finding about rejected requests, and is a warning
// before that.
func TestTokenFiles(t *testing.T) {
	now := time.Now()
	token := func(claims string) string {
		return "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln"
	}
	folder := t.TempDir()
	for i, c := range []struct{ content, want string }{
		{token(fmt.Sprintf(`{"exp":%d}`, now.Add(time.Hour).Unix())), ""},
		{token(`{"exp":1700000000}`) + "\n", "the token in FILE expired at 2023-11-14T22:13:20Z, by the clock of this node"},
		{token(`{}`), ""}, {"opaque", ""}, {"a.%.c", ""}, {"a.e30.c", ""},
		{" \n", "the token file FILE is empty"},
		{"a\nb", "the token file FILE has more than one line, or characters that HTTP does not permit"},
		{"none", "cannot read the token file: open FILE: no such file or directory"},
	} {
		path := filepath.Join(folder, strconv.Itoa(i))
		if c.content != "none" {
			lab.Must(t, os.WriteFile(path, []byte(c.content), 0o600))
		}
		want := strings.ReplaceAll(c.want, "FILE", path)
		lab.Same(t, want, tokenFault(path, now), "%q", c.content)

		a := NewAPI(func() (string, string) { return "https://10.0.0.1", "" }, nil, nil)
		a.TokenFile = path
		con := &Console{Parts: Parts{Settings: &settings.Settings{NodeName: "n"}, API: a}}
		look := func() view.Findings {
			s := &view.Status{Time: now, API: a.recorded(), Loop: &view.Loop{}}
			s.API.Answers = true
			return con.unread(s, nil)
		}
		if before := look(); (len(before) == 1) != (want != "") || len(before) == 1 &&
			(before[0].Reason != view.TokenUnusable || before[0].What != want) {
			t.Errorf("%q, before a rejection: %+v", c.content, before)
		}
		a.Failed("services", apierrors.NewUnauthorized("Unauthorized"))
		if after := look(); len(after) != 1 || after[0].Reason != view.APIUnauthorized ||
			!strings.HasSuffix(after[0].What, want) ||
			!strings.Contains(after[0].Fix, "write a valid token to "+path) {
			t.Errorf("%q, after a rejection: %+v", c.content, after)
		}
	}
}

// TestPodsAreForbidden: the permission to read pods is another one than that of a proxy, and has another finding.
func TestPodsAreForbidden(t *testing.T) {
	a := NewAPI(func() (string, string) { return "https://10.0.0.1", "" }, nil, nil)
	for _, resource := range []string{"services", "pods"} {
		a.Failed(resource, apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", errors.New("no role")))
	}
	con := &Console{Parts: Parts{Settings: &settings.Settings{NodeName: "n"}, API: a}}
	s := &view.Status{Time: time.Now(), API: a.recorded(), Loop: &view.Loop{}}
	s.API.Answers = true
	list := con.unread(s, func() (fix, affects string) { return "a proxy's", "" })
	if len(list) != 2 || !strings.Contains(list[0].Fix+list[1].Fix, "a proxy's") ||
		!strings.Contains(list[0].Fix+list[1].Fix, "deploy/host-ports") {
		t.Errorf("%+v, want a finding about pods, and one about Services", list)
	}
}

// TestFailuresEndWithTheOutage: after an outage, no failure is left. Failures that the API server answers stay for a while, because a watch may fail
// again at once.
func TestFailuresEndWithTheOutage(t *testing.T) {
	a := NewAPI(func() (string, string) { return "", "" }, nil, nil)
	a.Failed("services", &url.Error{Op: "Get", Err: errors.New("connection refused")})
	a.Failed("nodes", apierrors.NewInternalError(errors.New("corrupt")))
	a.Succeeded("services")
	a.Succeeded("nodes")
	s := a.recorded()
	if len(s.Failures) != 1 || s.Failures[0].Resource != "nodes" || s.Since != nil || !s.Answered {
		t.Errorf("after the recovery: %+v", s)
	}
	f := a.failures["nodes"]
	f.Last = f.Last.Add(-2 * lately)
	a.failures["nodes"] = f
	if s := a.recorded(); len(s.Failures) > 0 {
		t.Errorf("some time after the recovery: %+v", s)
	}
}

// TestCauseBeforeSymptom: a port that another proxy or instance has is not a finding of its own.
func TestCauseBeforeSymptom(t *testing.T) {
	inUse := view.Finding{Severity: view.Wrong, Reason: view.PortNotBound, What: "the program cannot listen at 0.0.0.0:10256: address already in use", Impact: "no probes"}
	denied := view.Finding{Severity: view.Wrong, Reason: view.PortNotBound, What: "the program cannot listen at 0.0.0.0:80: permission denied"}
	proxy := view.Finding{Severity: view.Wrong, Reason: view.KubeProxyRunning, What: "a kube-proxy runs", Impact: "the first rule wins", Fix: "stop it"}
	older := view.Finding{Severity: view.Warning, Reason: view.OlderInstance, What: "an older instance stands by"}
	full := view.Finding{Severity: view.Wrong, Reason: view.ConntrackFull, What: "full"}
	for _, c := range []struct {
		name       string
		list, want view.Findings
	}{
		{"a kube-proxy", []view.Finding{inUse, full, proxy}, []view.Finding{full, {Severity: view.Wrong, Reason: view.KubeProxyRunning, Fix: "stop it",
			What: "a kube-proxy runs; so the program cannot listen at 0.0.0.0:10256: address already in use", Impact: "the first rule wins; no probes"}}},
		{"an older instance", []view.Finding{inUse, older}, []view.Finding{{Severity: view.Wrong, Reason: view.OlderInstance,
			What: "an older instance stands by; so the program cannot listen at 0.0.0.0:10256: address already in use", Impact: "; no probes"}}},
		{"a newer instance", []view.Finding{{Severity: view.Note, Reason: view.StandingBy}, inUse}, []view.Finding{{Severity: view.Wrong,
			Reason: view.StandingBy, What: "; so the program cannot listen at 0.0.0.0:10256: address already in use", Impact: "; no probes"}}},
		{"another process", []view.Finding{inUse, full}, []view.Finding{inUse, full}},
		{"another error", []view.Finding{denied, proxy}, []view.Finding{denied, proxy}},
	} {
		lab.Same(t, c.want, absorb(c.list), "%s", c.name)
	}
}

// TestStepsOfARequest: a request without an answer names the step at which it waits.
func TestStepsOfARequest(t *testing.T) {
	entered := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(entered)
		<-r.Context().Done()
	}))
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ctx, step := withSteps(ctx)
	lab.Same(t, "wait for a connection, or for an earlier request", step(), "before the request")
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, nil)
	lab.Must(t, err)
	done := make(chan error, 1)
	go func() {
		_, err := server.Client().Do(request) //nolint:bodyclose // there is no answer
		done <- err
	}()
	<-entered
	const want = "wait for the answer to the request"
	for end := time.Now().Add(20 * time.Second); step() != want && time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	lab.Same(t, want, step(), "while the server does not answer")
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want a cancelled request", err)
	}
}

// TestServiceAddressesAreNoPods: an endpoint with the address of a Service, on this node by its EndpointSlice, is no pod.
func TestServiceAddressesAreNoPods(t *testing.T) {
	pod, vip := netip.MustParseAddr("10.244.0.10"), netip.MustParseAddr("10.96.0.10")
	got := podsAmong([]netip.Addr{vip, pod}, [2][]netip.Prefix{{netip.MustParsePrefix("10.96.0.0/16")}})
	lab.Same(t, []netip.Addr{pod}, got, "pods")
}
