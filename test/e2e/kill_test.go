//go:build e2e

package e2e

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"regexp"
	"strconv"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestKillNine changes Services at random and kills the daemon at random moments. Finally the kernel holds the same tables as
// after a start in a clean namespace.
func TestKillNine(t *testing.T) {
	const rounds = 20
	w := newWorld(t, lab.Config{Pods: 2, Remotes: 1})
	w.serve(w.Pods[0])
	w.apply(service("still"), slice("still", "still-1", endpoint(w.Pods[0].IPv4)))
	still := w.clusterIPs("still")[0]
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))

	d := w.start()
	reach(t, w.Pods[1], still, "pod-0")
	for range rounds {
		changed := make(chan error, 1)
		changes := randomChanges(r)
		go func() { changed <- changes(w) }()
		time.Sleep(time.Duration(r.IntN(400)) * time.Millisecond) // the random moment
		d.Kill()
		d = w.start()
		must(t, <-changed)
		lab.Check(t, reached(t.Context(), w.Pods[1], inet.TCP, still, "pod-0"), "a Service that doesn't change")
	}
	last := d.awaitIdle(patience)
	clean := w.asFresh()
	elements, _ := last.Sum("kubenftproxy_elements")
	t.Logf("%d rounds, in the end %v elements", rounds, elements)
	if elements < 100 {
		t.Errorf("%v elements in the end: nothing was compared", elements)
	}
	for _, d := range []*daemon{d, clean} {
		d.noErrors()
	}
}

// asFresh waits until the node's rules are those of a program that starts in a clean namespace, and returns that program. The namespace does not have the
// node's addresses, so only the node has their regions.
func (w *world) asFresh() *daemon {
	w.Helper()
	clean := w.startOn(w.Remotes[0], w.kubeconfig())
	clean.awaitIdle(patience)
	// Unused chains stay for two seconds.
	eventually(w, patience, func() error {
		want := ruleset(w, w.Remotes[0])
		addrs := w.Node.Addrs()
		region, bytes := netip.PrefixFrom(addrs[inet.IPv4], 20).Masked().Addr(), addrs[inet.IPv6].As16()
		want = append(want, fmt.Sprintf("ip set regions: %s", region),
			fmt.Sprintf("ip6 set regions: %#x", binary.BigEndian.Uint32(bytes[4:8])))
		slices.Sort(want)
		if diff := cmp.Diff(unnumbered(slices.Compact(want)), unnumbered(ruleset(w, w.Node))); diff != "" {
			return fmt.Errorf("ruleset against that of a fresh start (-want +got):\n%s", diff)
		}
		return nil
	})
	return clean
}

// randomChanges draws a few changes and returns a function that makes them.
func randomChanges(r *rand.Rand) func(*world) error {
	var changes []func(*world) error
	for range 5 + r.IntN(10) {
		name := fmt.Sprintf("random-%d", r.IntN(12))
		svc := randomService(r, name)
		slices := randomSlices(r, name)
		switch {
		case r.IntN(5) == 0:
			changes = append(changes, func(w *world) error { return w.api.Delete(w.Context(), svc) })
		default:
			changes = append(changes, func(w *world) error { return w.api.Apply(w.Context(), svc) })
		}
		for _, s := range slices {
			changes = append(changes, func(w *world) error { return w.api.Apply(w.Context(), s) })
		}
	}
	return func(w *world) error {
		for _, change := range changes {
			if err := change(w); err != nil {
				return err
			}
		}
		return nil
	}
}

// randomService draws one form of a Service.
func randomService(r *rand.Rand, name string) *corev1.Service {
	s := service(name, corev1.IPv4Protocol, corev1.IPv6Protocol)
	if r.IntN(2) == 0 {
		s.Spec.ExternalIPs = []string{fmt.Sprintf("203.0.113.%d", 1+r.IntN(8))}
	}
	if r.IntN(3) == 0 {
		timeout := int32(10 + r.IntN(2)*100)
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &timeout}}
	}
	switch r.IntN(3) {
	case 0:
		s.Spec.Type = corev1.ServiceTypeNodePort
	case 1:
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: fmt.Sprintf("203.0.113.%d", 100+r.IntN(100))}}
		if r.IntN(2) == 0 {
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		}
		if r.IntN(2) == 0 {
			s.Spec.LoadBalancerSourceRanges = []string{fmt.Sprintf("198.51.100.%d/32", r.IntN(256)), "192.0.2.0/24"}
		}
	}
	return s
}

// randomSlices draws the endpoints of a Service.
func randomSlices(r *rand.Rand, name string) []*discoveryv1.EndpointSlice {
	var slices []*discoveryv1.EndpointSlice
	for family, prefix := range map[inet.Family]string{inet.IPv4: "10.244.0.", inet.IPv6: "fd00:10:244::"} {
		var endpoints []discoveryv1.Endpoint
		first := 10 + r.IntN(40)
		for i := range 1 + r.IntN(8) {
			e := endpoint(addrPort(fmt.Sprintf("%s%d", prefix, first+i)).Addr())
			switch r.IntN(4) {
			case 0:
				e = terminating(e)
			case 1:
				e = elsewhere(e)
			}
			endpoints = append(endpoints, e)
		}
		slices = append(slices, slice(name, fmt.Sprintf("%s-%s", name, strings.ToLower(family.String())), endpoints...))
	}
	return slices
}

// ruleset returns a host's ruleset in a canonical order: nft lists sets and chains in the order of creation, and the elements of
// some sets unsorted. It omits the affinity map's elements.
func ruleset(t testing.TB, h *lab.Host) []string {
	t.Helper()
	var parts []string
	for _, family := range []string{"ip", "ip6"} {
		listing := strings.TrimSuffix(strings.TrimSpace(nft(t, h, "-s", "list", "table", family, "kube-nftproxy")), "}")
		for part := range strings.SplitSeq(listing, "\n\n") {
			form, list, _ := strings.Cut(part, "elements = {")
			parts = append(parts, family+" "+strings.Join(strings.Fields(form), " "))
			if strings.Contains(form, "dynamic") {
				continue
			}
			name, _, _ := strings.Cut(strings.TrimSpace(form), " {")
			for element := range strings.SplitSeq(list, ",") {
				parts = append(parts, family+" "+name+": "+strings.Trim(element, " \t\n{}"))
			}
		}
	}
	slices.Sort(parts)
	return parts
}

// unnumbered returns a ruleset with names instead of the numbers of service ports and endpoints, which depend on a process's
// history, and without the state element, whose key differs in every namespace.
func unnumbered(lines []string) (out []string) {
	names, ids := map[string]string{}, map[string]string{}
	for _, line := range lines {
		if m := heads.FindStringSubmatch(line); m != nil {
			family, number, class := m[1], word(m[4]), word(m[4])&0x7ff
			what := m[3]
			if class == 3 { // the number belongs to the Service's source ranges
				what, _, _ = strings.Cut(what, ":")
				what += " sources"
			}
			names[family+numberOf(number)] = what
		}
		if m := backends.FindStringSubmatch(line); m != nil {
			ids[m[1]+m[2]] = m[3]
		}
	}
	for _, line := range lines {
		family, _, _ := strings.Cut(line, " ")
		switch {
		case strings.Contains(line, ": 0x00000001 comment \"layout "), strings.Contains(line, " set node-addresses"):
			continue
		case strings.Contains(line, " map dispatch-remember: "):
			_, line, _ = strings.Cut(line, " : ")
			line = family + " map dispatch-remember: " + line
		default:
			fields := strings.Fields(line)
			for i, f := range fields {
				if !words.MatchString(f) || word(f) < 1<<31 {
					continue
				}
				rest := word(f) - word(numberOf(word(f)))
				text := fmt.Sprintf("<%s>%x", names[family+numberOf(word(f))], rest)
				if e, ok := ids[family+f]; ok && (strings.Contains(line, "slots: ") || strings.Contains(line, "backends: ")) {
					text = fmt.Sprintf("<%s>(%s)", names[family+numberOf(word(f))], e)
				}
				fields[i] = text
			}
			line = strings.Join(fields, " ")
		}
		out = append(out, line)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

var (
	heads    = regexp.MustCompile(`^(ip6?) map (services|nodeports|services-restricted): .* comment "(.*)" : ([0-9a-f]+:[0-9a-f]+)$`)
	backends = regexp.MustCompile(`^(ip6?) map (?:local-)?backends: \w+ \. ([0-9a-f]+:[0-9a-f]+) : (.*)$`)
	words    = regexp.MustCompile(`^[0-9a-f]{4}:[0-9a-f]{1,4}$`)
)

// word parses a value of the register.
func word(text string) uint32 {
	high, low, _ := strings.Cut(text, ":")
	a, _ := strconv.ParseUint(high, 16, 16)
	b, _ := strconv.ParseUint(low, 16, 16)
	return uint32(a<<16 | b)
}

// numberOf returns the number of a service port in a register value: with session affinity it is the upper half.
func numberOf(word uint32) string {
	if word >= 0xc000_0000 {
		return fmt.Sprintf("%x:0", word>>16)
	}
	return fmt.Sprintf("%x:%x", word>>16, word&0xf800)
}
