package model

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// redirecting returns a Service with a local redirect, with its own endpoints and those of the other Service.
func redirecting(own, other string) Objects {
	svc := service()
	svc.Annotations = map[string]string{annotationRedirect: "cache"}
	slicesOf := func(name, text string) []*Slice {
		return stored([]*discoveryv1.EndpointSlice{slice(name, eps(text)...)}, Limits{})
	}
	return Objects{Service: svc, Slices: slicesOf("own", own), Redirect: slicesOf("cache", other)}
}

// Each row has the endpoints of the Service and of the other Service, and those in Cluster and in Serving.
func TestRedirect(t *testing.T) {
	for _, tc := range []struct{ own, other, cluster, serving string }{
		{"1rs 2rs", "3rsl 4rs", "3", "1 2 3"},
		{"1r 2", "3rsl", "3", "1 3"},
		{"1rs 2rs", "", "1 2", "1 2"},
		{"1rs 2rs", "4rs", "1 2", "1 2"},
		{"1rs", "3l", "1", "1"},
		{"1rs", "3stl", "1", "1 3"},
		{"", "3stl", "", "3"},
		{"1rs", "3rsl 4stl", "3", "1 3 4"},
		{"1rs", "3rslz 4rslZ", "3 4", "1 3 4"},
		{"1st", "3rsl", "3", "1 3"},
		// The same address in both Services.
		{"1rs", "1rstl", "1", "1"},
		{"1rs", "1l", "1", "1"},
	} {
		sp := Build(redirecting(tc.own, tc.other), here, Options{}).Ports[0]
		if !slices.Equal(sp.Cluster, list(tc.cluster)) || !slices.Equal(sp.Serving, list(tc.serving)) {
			t.Errorf("own %q, other %q: %v, serving %v; want %q, %q", tc.own, tc.other, sp.Cluster, sp.Serving,
				tc.cluster, tc.serving)
		}
	}
}

// TestRedirectKeepsWhatItDoesNotUse: counts of connections and the termination of connections include all endpoints.
func TestRedirectKeepsWhatItDoesNotUse(t *testing.T) {
	for _, other := range []string{"3rsl", "3l"} {
		o := redirecting("1rs", other)
		o.Service.Annotations[annotationMaximum] = "5"
		o.Service.Annotations[annotationTerminate] = string(TerminateGone)
		s := Build(o, here, Options{})
		all := slices.Concat(s.Ports[0].Cluster, s.Ports[0].Idle)
		if len(all) != 2 || len(s.Ports[0].Idle) != 1 || len(s.Listed) != 2 {
			t.Errorf("other %q: %v in use, %v idle, %v listed", other, s.Ports[0].Cluster, s.Ports[0].Idle, s.Listed)
		}
	}
}

// TestRedirectWithoutEffect: with an external IP or a node port, all frontends have the Service's own endpoints. The same
// is true if too many older Services name the same Service.
func TestRedirectWithoutEffect(t *testing.T) {
	for _, change := range []func(*Objects){
		func(o *Objects) { o.Service.Spec.Type = corev1.ServiceTypeNodePort },
		func(o *Objects) { o.Service.Spec.Type = corev1.ServiceTypeLoadBalancer },
		func(o *Objects) { o.Service.Spec.ExternalIPs = []string{"192.0.2.9"} },
		func(o *Objects) {
			o.Service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.9"}} // of an earlier type
		},
		func(o *Objects) { o.ExcessRedirect = true },
	} {
		o := redirecting("1rs", "3rsl")
		change(&o)
		s := Build(o, here, Options{})
		problem := len(s.Problems) == 1 && s.Problems[0].Field == annotationField(annotationRedirect)
		if !problem || !slices.Equal(s.Ports[0].Cluster, list("1")) {
			t.Errorf("%+v: endpoints %v, problems %v", o.Service, s.Ports[0].Cluster, s.Problems)
		}
	}
}

// Each row has the endpoints of both Services, a part of the note, and of the reason against the endpoint that is not
// used.
func TestRedirectIsExplained(t *testing.T) {
	for _, tc := range []struct{ own, other, note, reason string }{
		{"1rs", "3rsl", "", "prefers the endpoints of Service cache"},
		{"1rs", "3l", "has no ready endpoint on this node", "not ready, and only ready endpoints"},
		{"1rs", "", "has no ready endpoint on this node", ""},
	} {
		x := Explain(redirecting(tc.own, tc.other), here, Options{})
		if notes := strings.Join(x.Notes, "; "); !strings.Contains(notes, tc.note) || (notes == "") != (tc.note == "") {
			t.Errorf("%+v: notes %q", tc, notes)
		}
		reasons := ""
		for _, c := range x.Ports[0].Candidates {
			reasons += c.NotCluster
		}
		if !strings.Contains(reasons, tc.reason) || (reasons == "") != (tc.reason == "") {
			t.Errorf("%+v: reasons %q", tc, reasons)
		}
	}
	o := redirecting("1rs", "3rsl")
	o.Redirect[0].Ports = append(o.Redirect[0].Ports, discoveryv1.EndpointPort{Name: new("debug")}) // without a number
	lab.Same(t, 0, len(Build(o, here, Options{}).Problems), "problems, which the other Service reports")
	o.Redirect = nil
	if notes := Explain(o, here, Options{}).Notes; len(notes) != 1 || !strings.Contains(notes[0], "does not exist") {
		t.Errorf("notes %q", notes)
	}
}
