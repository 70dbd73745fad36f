package view

import (
	"fmt"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestCauses checks the causes of Services, and that a Service has causes if and only if it needs attention.
func TestCauses(t *testing.T) {
	port := func(why string, endpoints []Endpoint, fronts ...Frontend) Service {
		return Service{Namespace: "a", Name: "web", Ports: []ServicePort{{Name: "http", Protocol: "tcp", Family: "IPv4", Why: why, Endpoints: endpoints, Frontends: fronts}}}
	}
	unready := []Endpoint{{Address: "10.244.0.1:80", Message: "not ready"}, {Address: "10.244.0.2:80", Message: "terminating"}}
	refused := Frontend{Address: "10.96.0.1:80", Message: "refused", Reason: "NoEndpoints"}
	noNodeAddress := Frontend{Address: "30080", Message: "not served", Reason: "NoNodeAddress"}
	withOthers := port("no port", nil, refused)
	withOthers.Unusable = []Endpoint{{Address: "10.244.0.1", Message: "no port"}}
	var many []Frontend
	lost := func(port int, to string) Frontend {
		f := Frontend{Address: fmt.Sprintf("203.0.113.1:%d", port), Endpoints: 1}
		f.Lose(to)
		return f
	}
	for i := range 1000 {
		many = append(many, lost(i, "a/other"))
	}
	for _, tc := range []struct {
		name string
		Service
		want []string
	}{
		{"healthy", port("", unready, Frontend{Endpoints: 1}), nil},
		{"policy Local without an endpoint here is normal", port("", unready, Frontend{Normal: true}), nil},
		{"a lost address", port("", nil, lost(80, "a/other:http")), []string{"203.0.113.1:80/TCP: not programmed: already used by a/other:http"}},
		{"one cause for all addresses of a port", port("no slice", nil, refused, refused), []string{"port http: no endpoints: no slice"}},
		{"no endpoint is ready", port("", unready, refused), []string{"port http: refused (2 endpoints; the first, 10.244.0.1:80: not ready)"}},
		{"no address serves node ports", port("", unready, noNodeAddress), []string{"30080/TCP: not served"}},
		{"endpoints without a port", withOthers, []string{"port http: no endpoints: no port"}},
		{"endpoints that no port uses", Service{Unusable: []Endpoint{{Address: "10.244.0.1", Message: "wrong family"}}}, []string{"endpoint 10.244.0.1: wrong family"}},
		{"a rejected part", Service{Problems: []string{"spec.externalIPs: 0.0.0.0"}}, []string{"spec.externalIPs: 0.0.0.0"}},
		{"too many", port("", nil, many...), []string{
			"203.0.113.1:0/TCP: not programmed: already used by a/other", "203.0.113.1:1/TCP: not programmed: already used by a/other", "203.0.113.1:2/TCP: not programmed: already used by a/other",
			"203.0.113.1:3/TCP: not programmed: already used by a/other", "203.0.113.1:4/TCP: not programmed: already used by a/other", "203.0.113.1:5/TCP: not programmed: already used by a/other", "there are more causes",
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			for _, c := range tc.Causes() {
				got = append(got, c.What)
				if c.Fix == "" {
					t.Errorf("%q has no fix", c.What)
				}
			}
			lab.Same(t, tc.want, got, "")
			if tc.Wrong() != (len(got) > 0) {
				t.Errorf("Wrong is %v, with %d causes", tc.Wrong(), len(got))
			}
		})
	}
}
