package console

import (
	"errors"
	"fmt"
	"net/url"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/config"
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
	}
	var got [][]string
	for _, g := range alikeFailures(list) {
		var names []string
		for _, f := range g {
			names = append(names, f.Resource)
		}
		got = append(got, names)
	}
	lab.Same(t, [][]string{{"a", "c"}, {"b", "d"}, {"e"}}, got, "")
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
		want    int
	}{
		{"a conflict", []view.Repair{repair(3*time.Second, other), repair(2*time.Second, other), repair(time.Second, other)}, 1},
		{"a replacement", []view.Repair{repair(3*time.Second, other), repair(2*time.Second, other)}, 0},
		{"long ago", []view.Repair{repair(time.Hour, other), repair(time.Hour, other), repair(time.Second, other)}, 0},
		{"another program", []view.Repair{repair(3*time.Second, "nft"), repair(2*time.Second, "nft"), repair(time.Second, "nft")}, 0},
	} {
		if got := (&Console{Parts: Parts{Settings: &settings.Settings{NodeName: "n"}}}).rivals(&view.Status{Time: now, Loop: &view.Loop{Repairs: c.repairs}}); len(got) != c.want {
			t.Errorf("%s: %+v, want %d findings", c.name, got, c.want)
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
