package scenario

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/yaml"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// l4Page is the page whose last section has the example that the tests apply.
const l4Page = "../../docs/algorithms.md"

var (
	yamlFence = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$")
	l4Row     = regexp.MustCompile(`(?m)^\| ([0-9, ]+) \| ([0-9, ]+) \| ([0-9, ]+) \| ([0-9]+) \| ([0-9.%, ]+) \|$`)
)

func readL4Page(t *testing.T) (text string, fences []string) {
	t.Helper()
	b, err := os.ReadFile(l4Page)
	lab.Must(t, err)
	_, text, _ = strings.Cut(string(b), "\n## L4 routes\n")
	for _, m := range yamlFence.FindAllStringSubmatch(text, -1) {
		fences = append(fences, m[1])
	}
	if len(fences) != 3 {
		t.Fatalf("%d examples, want a route, its translation, and an empty backend", len(fences))
	}
	return text, fences
}

// endpointWeights is the arithmetic of the page: the weights of backends, and their numbers of endpoints, above 0.
func endpointWeights(weights, endpoints []int) []int {
	const exact = 10_000
	multiple, sum, slots := 1, 0, 0
	for i, n := range endpoints {
		multiple, sum = multiple/gcd(multiple, n)*n, sum+weights[i]
	}
	out := make([]int, len(weights))
	for i, n := range endpoints {
		out[i] = weights[i] * multiple / n
	}
	out = reduced(out)
	for i, n := range endpoints {
		slots += out[i] * n
	}
	if slots <= exact {
		return out
	}
	for i, n := range endpoints {
		out[i] = max(1, int(math.Round(exact*float64(weights[i])/float64(sum)/float64(n))))
	}
	return reduced(out)
}

func reduced(list []int) (out []int) {
	divisor := 0
	for _, n := range list {
		divisor = gcd(n, divisor)
	}
	for _, n := range list {
		out = append(out, n/divisor)
	}
	return out
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// TestL4RouteWeights computes each row of the page's table.
func TestL4RouteWeights(t *testing.T) {
	text, _ := readL4Page(t)
	rows := l4Row.FindAllStringSubmatch(text, -1)
	if len(rows) < 5 {
		t.Fatalf("%d rows, want 5", len(rows))
	}
	numbers := func(list string) (out []int) {
		for _, s := range strings.Split(list, ", ") {
			n, err := strconv.Atoi(s)
			lab.Must(t, err)
			out = append(out, n)
		}
		return out
	}
	for _, row := range rows {
		endpoints := numbers(row[2])
		got, slots, shares := endpointWeights(numbers(row[1]), endpoints), 0, []string{}
		for i, n := range endpoints {
			slots += n * got[i]
		}
		for i, n := range endpoints {
			shares = append(shares, fmt.Sprintf("%.1f %%", 100*float64(n*got[i])/float64(slots)))
		}
		if !slices.Equal(got, numbers(row[3])) || fmt.Sprint(slots) != row[4] || strings.Join(shares, ", ") != row[5] {
			t.Errorf("%s: weights %d, slots %d, shares %q", row[0], got, slots, shares)
		}
	}
}

// TestL4Routes applies the example of the page. Its weights follow from the route. The kernel has the exact shares, and connections
// have them within five standard deviations. An empty backend rejects its share.
func TestL4Routes(t *testing.T) {
	_, fences := readL4Page(t)
	checkL4Weights(t, fences[0], fences[1])
	l := lab.ForTest(t, lab.Config{Pods: 2, Remotes: 3})
	for _, h := range slices.Concat(l.Pods, l.Remotes[:2]) {
		mustServe(t, h)
	}
	s, err := parseSettings(nil)
	lab.Must(t, err)
	p := pipelineForTest(t, l)
	common, err := os.ReadFile(common)
	lab.Must(t, err)
	for _, protocol := range []inet.Protocol{inet.TCP, inet.UDP} {
		load := func(files map[string]string) {
			t.Helper()
			for name, text := range files {
				text = strings.ReplaceAll(text, "protocol: TCP", "protocol: "+strings.ToUpper(protocol.String()))
				lab.Must(t, os.WriteFile(filepath.Join(p.folder, name), []byte(text), 0o600))
			}
			lab.Must(t, p.load())
			lab.Same(t, "", p.reported(), "%s: problems", protocol)
		}
		objects := strings.SplitN(fences[1], "\n---\n", 3)
		load(map[string]string{"cluster.yaml": string(common), "service.yaml": objects[0], "v1.yaml": objects[1], "v2.yaml": objects[2]})
		checkL4Slots(t, l.Node, p.kernel.assigned(), s, p.folder, map[string]int{
			"10.244.0.10 . 8080": 3, "10.244.0.11 . 8080": 3, "10.244.1.10 . 8080": 3, "10.244.1.11 . 9090": 1})
		checkL4Packets(t, l, protocol, "remote-1")
		load(map[string]string{"v2.yaml": fences[2]})
		checkL4Packets(t, l, protocol, lab.Refused.String())
	}
}

// checkL4Weights compares the weights of the translation with the arithmetic.
func checkL4Weights(t *testing.T, route, translation string) {
	t.Helper()
	var r struct {
		Spec struct {
			Rules []struct {
				BackendRefs []struct{ Weight int }
			}
		}
	}
	if err := yaml.Unmarshal([]byte(route), &r); err != nil || len(r.Spec.Rules) != 1 {
		t.Fatalf("the route: %v, %+v", err, r)
	}
	var weights, endpoints, given []int
	for i, ref := range r.Spec.Rules[0].BackendRefs {
		var slice discoveryv1.EndpointSlice
		lab.Must(t, yaml.UnmarshalStrict([]byte(strings.Split(translation, "\n---\n")[1+i]), &slice))
		n, err := strconv.Atoi(slice.Annotations["service.cilium.io/weight"])
		lab.Must(t, err)
		weights, endpoints, given = append(weights, ref.Weight), append(endpoints, len(slice.Endpoints)), append(given, n)
	}
	if want := endpointWeights(weights, endpoints); !slices.Equal(given, want) || !slices.Equal(weights, []int{90, 10}) {
		t.Errorf("a route with weights %d: the translation has weights %d, want %d", weights, given, want)
	}
}

// checkL4Slots compares the number of slots of each endpoint in the kernel.
func checkL4Slots(t *testing.T, node *lab.Host, numbers *plan.Numbers, s settings, folder string, want map[string]int) {
	t.Helper()
	state, err := planFolder(node, s, folder, numbers, nil)
	lab.Must(t, err)
	list, _, err := inKernel(node, state.planner)
	lab.Must(t, err)
	got := map[string]int{}
	for _, e := range list {
		if strings.HasPrefix(e, "ip endpoints {") {
			_, endpoint, _ := strings.Cut(e, " : ")
			got[strings.TrimSuffix(endpoint, " }")]++
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("slots %v, want %v", got, want)
	}
}

// checkL4Packets expects that a tenth of all connections has the outcome other: the name of a server, or a refusal.
func checkL4Packets(t *testing.T, l *lab.Lab, protocol inet.Protocol, other string) {
	t.Helper()
	const tries, share, deviations = 1000, 0.1, 5
	to, got := netip.MustParseAddrPort("198.51.100.10:80"), map[string]int{}
	for range tries {
		a := l.Client.Probe(t.Context(), protocol, to, lab.Options{Timeout: patience})
		got[cmp.Or(a.Server, a.Outcome.String())]++
	}
	most := deviations * math.Sqrt(tries*share*(1-share))
	if n := float64(got[other]); math.Abs(n-tries*share) > most || len(got) != 4 || got["pod-0"]+got["pod-1"]+got["remote-0"] != tries-got[other] {
		t.Errorf("%s: of %d connections %v, want %.0f ± %.0f %s", protocol, tries, got, tries*share, most, other)
	}
}
