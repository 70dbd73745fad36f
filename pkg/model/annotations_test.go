package model

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/balance"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestEachAnnotationHasARow: pkg/watch stores only the annotations in the table, so that Build would never see another
// one. An alias has a row directly after the rows of the same purpose.
func TestEachAnnotationHasARow(t *testing.T) {
	rows, last := map[string]int{}, ""
	for _, a := range Annotations {
		rows[a.Name]++
		if a.Alias == "" {
			last = a.Name
		} else if a.Alias != last {
			t.Errorf("%s is an alias of %s, but follows %s", a.Name, a.Alias, last)
		}
		if (a.set == nil) == (a.weigh == nil) {
			t.Errorf("%s is not an annotation of either Services or EndpointSlices", a.Name)
		}
		if len(a.Samples) == 0 || a.Values == "" || a.Meaning == "" || a.Page == "" {
			t.Errorf("%s lacks samples, or texts for the page", a.Name)
		}
	}
	text, err := os.ReadFile("annotations.go")
	lab.Must(t, err)
	names := regexp.MustCompile(`(?m)^\tannotation\w+ += (?:(prefix) \+ )?"(.*)"$`).FindAllStringSubmatch(string(text), -1)
	for _, m := range names {
		if name := strings.Replace(m[1], "prefix", prefix, 1) + m[2]; rows[name] != 1 {
			t.Errorf("%s has %d rows, want one", name, rows[name])
		}
	}
	if len(names) < 5 {
		t.Errorf("only %d names have constants", len(names))
	}
}

// TestValuesOfAnnotations: each sample is valid. An invalid value of any annotation becomes a problem with its path.
func TestValuesOfAnnotations(t *testing.T) {
	beside := map[string]map[string]string{
		prefix + "at-max-connections": {annotationMaximum: "5"}, prefix + "lb-table-size": {annotationAlgorithm: balance.Maglev},
		annotationSpread: {annotationTerminate: string(TerminateGone)},
	}
	opts := Options{Direct: true, UnusedPorts: UnusedPorts{All: true}, Ping: PingAlways}
	for _, a := range Annotations {
		problems := func(value string) []Problem {
			svc, s := service(), slice("a", eps("1rs")...)
			svc.Annotations, s.Annotations = map[string]string{}, map[string]string{}
			maps.Copy(svc.Annotations, beside[a.Name])
			if a.OfSlices() {
				s.Annotations[a.Name] = value
			} else {
				svc.Annotations[a.Name] = value
			}
			return buildFrom(svc, []*discoveryv1.EndpointSlice{s}, here, opts).Problems
		}
		for _, value := range a.Samples {
			if got := problems(value); len(got) > 0 {
				t.Errorf("%s: %q: problems %+v", a.Name, value, got)
			}
		}
		for _, value := range a.Wrong {
			if got := problems(value); !slices.ContainsFunc(got, func(p Problem) bool {
				return p.Field == annotationField(a.Name) && p.OfAnnotation() && strings.HasSuffix(p.Reason, a.Else)
			}) {
				t.Errorf("%s: %q: problems %+v", a.Name, value, got)
			}
		}
	}
}

// TestUnknownAnnotations: an unknown annotation of a Service becomes a problem, and so does one of EndpointSlices.
func TestUnknownAnnotations(t *testing.T) {
	for _, name := range []string{prefix + "scale-to-one", prefix + "weights"} {
		svc := service()
		svc.Annotations = map[string]string{name: "?"}
		got := buildFrom(svc, nil, here, Options{}).Problems
		if len(got) != 1 || got[0].Field != "metadata.annotations" || !strings.Contains(got[0].Reason, name) {
			t.Errorf("%s: problems %+v", name, got)
		}
	}
}

// Each row has annotations of a Service as key=value. The default of the node is source-hash.
func TestAlgorithms(t *testing.T) {
	for _, tc := range []struct{ annotations, want, problem string }{
		{"", "source-hash", ""},
		{"kube-nftproxy.io/lb-algorithm=random", "random", ""},
		{"kube-nftproxy.io/lb-algorithm=maglev", "maglev", ""},
		{"kube-nftproxy.io/lb-algorithm=source-hash/24,56", "source-hash/24,56", ""},
		{"kube-nftproxy.io/lb-algorithm=maglev kube-nftproxy.io/lb-table-size=1021", "maglev with 1021 slots", ""},
		{"kube-nftproxy.io/lb-table-size=1021", "source-hash with 1021 slots", ""},
		{"kube-nftproxy.io/lb-algorithm=random kube-nftproxy.io/lb-table-size=7", "random", ""},
		{"kube-nftproxy.io/lb-algorithm=maglev kube-nftproxy.io/lb-table-size=1000", "maglev", "lb-table-size"},
		{"kube-nftproxy.io/lb-algorithm=least-conn", "random", "lb-algorithm"},
		{"kube-nftproxy.io/lb-algorithm=x service.cilium.io/lb-algorithm=maglev", "random", "lb-algorithm"},
		{"kube-nftproxy.io/lb-algorithm=random service.cilium.io/lb-algorithm=maglev", "random", ""},
		{"service.cilium.io/lb-algorithm=maglev", "maglev", ""},
		{"service.cilium.io/lb-algorithm=random", "random", ""},
		{"service.cilium.io/lb-algorithm=source-hash", "random", "service.cilium.io/lb-algorithm"},
		{"lb.projectcalico.org/external-traffic-strategy=maglev", "maglev", ""},
		{"lb.projectcalico.org/external-traffic-strategy=random", "random", "lb.projectcalico.org/external-traffic-strategy"},
		{"other/lb-algorithm=maglev", "source-hash", ""},
	} {
		svc := annotated(tc.annotations)
		def, _ := balance.Parse(balance.SourceHash)
		got := buildFrom(svc, []*discoveryv1.EndpointSlice{slice("a", eps("1rs 2rs")...)}, here, Options{Method: def})
		lab.Same(t, tc.want, got.Ports[0].Method.String(), "%s: method", tc.annotations)
		if len(got.Problems) > 1 || (len(got.Problems) > 0) != (tc.problem != "") || tc.problem != "" && !strings.Contains(got.Problems[0].Field, tc.problem) {
			t.Errorf("%s: problems %+v, want one of %q", tc.annotations, got.Problems, tc.problem)
		}
	}
}

// Each row has annotations of a Service as key=value.
// A Service holds connections while none of its ports has an endpoint in any family.
func TestScaleToZero(t *testing.T) {
	const own, cilium = "kube-nftproxy.io/scale-to-zero=", " service.cilium.io/scale-to-zero="
	for _, tc := range []struct {
		annotations, endpoints string
		want                   bool
		problem                string
	}{
		{"", "", false, ""},
		{own + "true", "", true, ""},
		{own + "true", "1rs", false, ""},
		{own + "false", "", false, ""},
		{cilium + "true", "", true, ""},
		{own + "false" + cilium + "true", "", false, ""},
		{own + "60" + cilium + "true", "", false, "kube-nftproxy.io/scale-to-zero"},
		{cilium + "on", "", false, "service.cilium.io/scale-to-zero"},
	} {
		svc := annotated(tc.annotations)
		got := buildFrom(svc, []*discoveryv1.EndpointSlice{slice("a", eps(tc.endpoints)...)}, here, Options{})
		lab.Same(t, tc.want, got.Asleep(), "%s with endpoints %q: asleep", tc.annotations, tc.endpoints)
		if len(got.Problems) > 1 || (len(got.Problems) > 0) != (tc.problem != "") || tc.problem != "" && got.Problems[0].Field != annotationField(tc.problem) {
			t.Errorf("%s: problems %+v, want one of %q", tc.annotations, got.Problems, tc.problem)
		}
	}
}

func TestMaximums(t *testing.T) {
	const most, at = "kube-nftproxy.io/max-connections=", " kube-nftproxy.io/at-max-connections="
	for _, tc := range []struct {
		annotations string
		affinity    bool
		want        uint16
		at          AtMaximum
		problem     string
	}{
		{"", false, 0, "", ""},
		{most + "1", false, 1, Refuse, ""},
		{most + "1000", false, 1000, Refuse, ""},
		{most + "100" + at + "refuse", false, 100, Refuse, ""},
		{most + "100" + at + "queue", false, 100, Queue, ""},
		{most + "100" + at + "Queue", false, 100, Refuse, "at-max-connections"},
		{at + "queue", false, 0, "", ""},
		{most + "0", false, 0, "", "max-connections"},
		{most + "1001", false, 0, "", "max-connections"},
		{most + "-1", false, 0, "", "max-connections"},
		{most + "99999999999999999999", false, 0, "", "max-connections"},
		{most + "100", true, 100, "", "session affinity"},
	} {
		svc := annotated(tc.annotations)
		if tc.affinity {
			svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		}
		got := buildFrom(svc, []*discoveryv1.EndpointSlice{slice("a", eps("1rs 2rs")...)}, here, Options{})
		if p := got.Ports[0]; p.MaxConnections != tc.want || p.AtMaximum != tc.at {
			t.Errorf("%s: maximum %d, then %q, want %d, then %q", tc.annotations, p.MaxConnections, p.AtMaximum, tc.want, tc.at)
		}
		if len(got.Problems) > 1 || (len(got.Problems) > 0) != (tc.problem != "") || tc.problem != "" && !strings.Contains(got.Problems[0].Text()+got.Problems[0].Field, tc.problem) {
			t.Errorf("%s: problems %+v, want one of %q", tc.annotations, got.Problems, tc.problem)
		}
	}
}

// Each row has a slice with endpoints 1 and 2 and its annotations, beside a slice with endpoint 3 without any.
func TestWeights(t *testing.T) {
	for _, tc := range []struct {
		name, all, own, cluster string
		weights                 []uint16
		problems                int
	}{
		{"none", "", "", "1 2 3", nil, 0},
		{"of a slice", "2", "", "1 2 3", []uint16{2, 2, 1}, 0},
		{"of endpoints", "", "10.1.0.1=4, 10.1.0.2=2", "1 2 3", []uint16{4, 2, 1}, 0},
		{"of a slice, but one endpoint", "2", "10.1.0.2=6", "1 2 3", []uint16{2, 6, 1}, 0},
		{"equal", "1", "10.1.0.2=1", "1 2 3", nil, 0},
		{"quarantine of a slice", "0", "", "3", nil, 0},
		{"quarantine of an endpoint", "", "10.1.0.1=0", "2 3", nil, 0},
		{"quarantine of a slice, but one endpoint", "0", "10.1.0.2=5", "2 3", []uint16{5, 1}, 0},
		{"invalid", "65536", "10.1.0.1=-1,x=3,,10.1.0.2=3", "1 2 3", []uint16{1, 3, 1}, 4},
		{"invalid in a slice with a weight", "2", "10.1.0.1=x", "1 2 3", []uint16{2, 2, 1}, 1},
		{"an endpoint of another slice", "", "10.1.0.3=7", "1 2 3", nil, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			weighted := slice("a", eps("1rs 2rs")...)
			weighted.Annotations = map[string]string{}
			if tc.all != "" {
				weighted.Annotations["service.cilium.io/weight"] = tc.all
			}
			if tc.own != "" {
				weighted.Annotations["kube-nftproxy.io/weights"] = tc.own
			}
			got := buildFrom(service(), []*discoveryv1.EndpointSlice{weighted, slice("b", eps("3rs")...)}, here, Options{})
			if diff := cmp.Diff(list(tc.cluster), got.Ports[0].Cluster, exact); diff != "" {
				t.Errorf("endpoints (-want +got):\n%s", diff)
			}
			lab.Same(t, tc.weights, got.Ports[0].ClusterWeights, "weights")
			if len(got.Problems) != tc.problems {
				t.Errorf("problems %+v, want %d", got.Problems, tc.problems)
			}
		})
	}
	twice := slice("b", eps("1rs")...) // the greater weight counts
	twice.Annotations = map[string]string{"service.cilium.io/weight": "3"}
	got := buildFrom(service(), []*discoveryv1.EndpointSlice{slice("a", eps("1rs 2rs")...), twice}, here, Options{})
	lab.Same(t, []uint16{3, 1}, got.Ports[0].ClusterWeights, "weights of an endpoint in two slices")
}

// An endpoint of weight 0 gets no new connections, its UDP flows go on, and without any other endpoint connections are refused.
func TestQuarantine(t *testing.T) {
	svc := service()
	svc.Spec.Ports[0].Protocol = corev1.ProtocolUDP
	quarantined := slice("a", eps("1rs 2st 3")...)
	quarantined.Ports[0].Protocol = new(corev1.ProtocolUDP)
	quarantined.Annotations = map[string]string{"service.cilium.io/weight": "0"}
	got := build(t, svc, quarantined).Ports[0]
	if got.HasEndpoints || got.Cluster != nil {
		t.Errorf("endpoints of weight 0 are used: %v", got.Cluster)
	}
	if diff := cmp.Diff(list("1 2"), got.Serving, exact); diff != "" {
		t.Errorf("endpoints of existing flows (-want +got):\n%s", diff)
	}
	x := explainFrom(svc, []*discoveryv1.EndpointSlice{quarantined}, here, Options{})
	for _, c := range x.Ports[0].Candidates {
		if !strings.Contains(c.NotCluster, "its weight is 0") {
			t.Errorf("%s is not used because %q", c.Addr, c.NotCluster)
		}
	}
}

// Above the limit of slots, all endpoints have the same share, and endpoints of weight 0 still have none.
func TestLimitOfSlots(t *testing.T) {
	for _, tc := range []struct {
		name, algorithm, weights string
		limit                    int
		exceeded                 bool
	}{
		{"weights within the limit", "random", "10.1.0.1=5,10.1.0.2=2", 8, false},
		{"weights above the limit", "random", "10.1.0.1=5,10.1.0.2=3", 8, true},
		{"equal weights are no slots", "random", "10.1.0.1=1", 1, false},
		{"maglev within the limit", "maglev", "", 251, false},
		{"maglev above the limit", "maglev", "", 250, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			svc := service()
			svc.Annotations = map[string]string{annotationAlgorithm: tc.algorithm}
			s := slice("a", eps("1rs 2rs 3rs 4rs")...)
			if tc.weights != "" {
				s.Annotations = map[string]string{prefix + "weights": tc.weights + ",10.1.0.4=0"}
			}
			limits := DefaultLimits()
			limits.Slots = tc.limit
			if tc.weights != "" {
				limits.Slots++ // all nodes count an endpoint of weight 0 alike: as one slot
			}
			got := buildFrom(svc, []*discoveryv1.EndpointSlice{s}, here, Options{Limits: limits})
			p := got.Ports[0]
			if fell := p.Method.Key == balance.Chance && p.ClusterWeights == nil; tc.exceeded && !fell {
				t.Errorf("method %v with weights %v", p.Method, p.ClusterWeights)
			}
			want := []string(nil)
			if tc.exceeded {
				want = []string{"Service: slots"}
			}
			lab.Same(t, want, exceeded(got), "exceeded limits")
			if tc.weights != "" && len(p.Cluster) != 3 {
				t.Errorf("endpoints %v: one has weight 0", p.Cluster)
			}
		})
	}
}

// A hash is not offered for more endpoints than its largest table serves well.
func TestHashOfVeryManyEndpoints(t *testing.T) {
	for n, want := range map[int]string{balance.MostHashed: balance.Maglev, balance.MostHashed + 1: balance.Random} {
		svc, all := service(), slice("a")
		svc.Annotations = map[string]string{annotationAlgorithm: balance.Maglev}
		for i := range n {
			all.Endpoints = append(all.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.1.%d.%d", i/256, i%256)}})
		}
		if got := buildFrom(svc, []*discoveryv1.EndpointSlice{all}, here, Options{}).Ports[0].Method.String(); got != want {
			t.Errorf("%d endpoints: %s, want %s", n, got, want)
		}
	}
}
