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

// TestEachAnnotationHasARow: pkg/watch stores only the annotations in the table, so that Build would never see another one.
func TestEachAnnotationHasARow(t *testing.T) {
	rows := map[string]int{}
	for _, a := range Annotations {
		rows[a.Name]++
		if a.Alias != "" && (rows[a.Alias] != 1 || a.Values == "") {
			t.Errorf("%s is an alias of %q, which has no row before", a.Name, a.Alias)
		}
	}
	text, err := os.ReadFile("annotations.go")
	lab.Must(t, err)
	names := 0
	for _, m := range regexp.MustCompile(`(?m)^\t\w+ += (?:(prefix) \+ )?"([\w./-]+)"$`).FindAllStringSubmatch(string(text), -1) {
		if name := strings.Replace(m[1], "prefix", prefix, 1) + m[2]; strings.Contains(name, "/") {
			if names++; rows[name] != 1 {
				t.Errorf("%s has %d rows, want one", name, rows[name])
			}
		}
	}
	if names != len(Annotations) {
		t.Errorf("%d names, %d rows", names, len(Annotations))
	}
}

// TestInvalidAnnotations: an invalid value of any annotation of Services becomes a problem with its path.
func TestInvalidAnnotations(t *testing.T) {
	beside := map[string]map[string]string{annotationAtMaximum: {annotationMaximum: "5"}, annotationTableSize: {annotationAlgorithm: balance.Maglev}}
	for _, name := range append(AnnotationsOf(false), prefix+"scale-to-one", annotationWeights) {
		svc, field := service(), annotationField(name)
		svc.Annotations = map[string]string{name: "?"}
		maps.Copy(svc.Annotations, beside[name])
		if name == annotationWeights || strings.HasSuffix(name, "-one") {
			field = "metadata.annotations"
		}
		got := buildFrom(svc, nil, here, Options{UnusedPorts: UnusedPorts{All: true}, Ping: PingAlways})
		reported := slices.ContainsFunc(got.Problems, func(p Problem) bool {
			return p.Field == field && strings.Contains(p.Reason, `"?"`) != (field == "metadata.annotations")
		})
		if reported == (name == annotationWholeIP) { // Cozystack defines its values
			t.Errorf("%s: problems %+v", name, got.Problems)
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
		if method := got.Ports[0].Method.String(); method != tc.want {
			t.Errorf("%s: method %s, want %s", tc.annotations, method, tc.want)
		}
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
		if got.Asleep() != tc.want {
			t.Errorf("%s with endpoints %q: asleep is %v, want %v", tc.annotations, tc.endpoints, got.Asleep(), tc.want)
		}
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
				s.Annotations = map[string]string{annotationWeights: tc.weights + ",10.1.0.4=0"}
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
