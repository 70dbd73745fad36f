package scenario

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/host"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/trace"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft/read"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// alterations are manual changes of a table, with the resulting destination of a packet of pod-1 to 10.96.0.10:80, or to the
// Service with affinity.
var alterations = []struct {
	name   string
	sticky bool
	// input is for nft -f. RULE(chain, n) stands for the handle of a rule.
	input string
	// want are the predicted and actual results; why is a part of the reason.
	want []string
	why  string
	// refused is the probability of a rejection, if it is neither 0 nor 1.
	refused float64
}{
	{name: "as it should be", want: []string{"pod-0 sees 10.244.0.11", "remote-0 sees 10.244.0.11"}, why: "one of 2 at random"},
	{
		name:  "the element of the Service is deleted",
		input: "delete element ip kube-nftproxy services { 10.96.0.10 . tcp . 80 }",
		want:  []string{"refused"}, why: "a cluster IP without such a port",
	},
	{
		name: "and that of its address",
		input: "delete element ip kube-nftproxy services { 10.96.0.10 . tcp . 80 }\n" +
			"delete element ip kube-nftproxy cluster-ips { 10.96.0.10 }",
		want: []string{"timed out"}, why: "a service address that is not in use",
	},
	{
		name:  "one endpoint is deleted",
		input: "delete element ip kube-nftproxy endpoints { tcp . 8000:800 . 0 }",
		want:  []string{"pod-0 sees 10.244.0.11", "refused"}, why: "map endpoints has no element tcp . 8000:800 . 0",
		refused: 0.25, // half of the first lookup, and half of the second one
	},
	{
		name:  "one endpoint fewer than the class says",
		input: "delete element ip kube-nftproxy endpoints { tcp . 8000:800 . 1 }",
		want:  []string{"remote-0 sees 10.244.0.11"},
	},
	{
		name:   "one endpoint with affinity fewer than the class says",
		sticky: true,
		input:  "delete element ip kube-nftproxy slots { c000:0 . 1 }",
		want:   []string{"remote-0 sees 10.244.0.11"},
	},
	{
		name: "an endpoint is another",
		input: "delete element ip kube-nftproxy endpoints { tcp . 8000:800 . 0 }\n" +
			"delete element ip kube-nftproxy endpoints { tcp . 8000:800 . 1 }\n" +
			"add element ip kube-nftproxy endpoints { tcp . 8000:800 . 0 : 10.244.1.11 . 9090, tcp . 8000:800 . 1 : 10.244.1.11 . 9090 }",
		want: []string{"remote-1 sees 10.244.0.11"}, why: "one of 2 at random",
	},
	{
		name:  "the rule that draws is deleted",
		input: "delete rule ip kube-nftproxy endpoints-of-2 handle RULE(endpoints-of-2,-2)",
		want:  []string{"remote-0 sees 10.244.0.11"},
	},
	{
		name: "both rules that draw are deleted",
		input: "delete rule ip kube-nftproxy endpoints-of-2 handle RULE(endpoints-of-2,-2)\n" +
			"delete rule ip kube-nftproxy fewer-endpoints handle RULE(fewer-endpoints,-2)",
		want: []string{"refused"}, why: "a cluster IP without such a port",
	},
	{
		name:  "a rule precedes all",
		input: "insert rule ip kube-nftproxy services ip saddr 10.244.0.0/24 tcp dport { 80, 443 } counter drop",
		want:  []string{"timed out"}, why: `rule "ip saddr 10.244.0.0/24 `,
	},
	{
		name:  "a rule before all matches others only",
		input: "insert rule ip kube-nftproxy services ip saddr 10.244.7.0-10.244.7.9 tcp dport 1-100 counter drop",
		want:  []string{"pod-0 sees 10.244.0.11", "remote-0 sees 10.244.0.11"},
	},
	{
		name:  "a rule matches all but a range that the client is in",
		input: "insert rule ip kube-nftproxy services ip saddr != 10.244.0.0-10.244.0.255 tcp dport 80 counter drop",
		want:  []string{"pod-0 sees 10.244.0.11", "remote-0 sees 10.244.0.11"},
	},
	{
		name:  "a rule matches all but a range that the client isn't in",
		input: "insert rule ip kube-nftproxy services ip saddr != 10.244.7.0-10.244.7.9 tcp dport 80 counter drop",
		want:  []string{"timed out"}, why: `rule "ip saddr != 10.244.7.0-10.244.7.9 `,
	},
	{
		name:  "a rule in the Service's chain",
		input: "insert rule ip kube-nftproxy endpoints-of-2 ip saddr 10.244.0.11 drop",
		want:  []string{"timed out"}, why: `rule "ip saddr 10.244.0.11 drop" of chain endpoints-of-2`,
	},
	{
		name:  "a rule translates to another host",
		input: "insert rule ip kube-nftproxy prerouting ip daddr 10.96.0.10 tcp dport 80 dnat to 10.244.1.11:9090",
		want:  []string{"remote-1 sees 10.244.0.11"},
	},
	{
		name:  "everything is masqueraded",
		input: "add rule ip kube-nftproxy translated masquerade",
		want:  []string{"pod-0 sees 192.0.2.1", "remote-0 sees 192.0.2.1"},
	},
	{
		name:  "a chain's policy drops",
		input: "add chain ip kube-nftproxy last { type filter hook postrouting priority 300; policy drop; }",
		want:  []string{"timed out"}, why: "the policy of chain last is to drop",
	},
	{
		name: "a chain drops after masquerading",
		input: "add rule ip kube-nftproxy translated masquerade\n" +
			"add chain ip kube-nftproxy last { type filter hook postrouting priority 300; policy drop; }",
		want: []string{"timed out"}, why: "the policy of chain last is to drop",
	},
	{name: "the lease has run out", input: "flush set ip kube-nftproxy lease", want: []string{"pod-0 sees 10.244.0.11", "remote-0 sees 10.244.0.11"}},
	{name: "the table is dormant", input: "add table ip kube-nftproxy { flags dormant; }", want: []string{"lost"}, why: "is dormant"},
	{name: "there is no table", input: "delete table ip kube-nftproxy", want: []string{"lost"}, why: "there is no table"},
}

// TestTraceFollowsAlteredRules: traces of manually changed rules match the packets.
func TestTraceFollowsAlteredRules(t *testing.T) {
	t.Parallel()
	r := &rig{lab: newLab(t)}
	folder := t.TempDir()
	common, err := os.ReadFile(common)
	lab.Must(t, err)
	slices := mustSlices(t, "shop/web-4 http=8080: pod-0 remote-0\nshop/sticky-4 http=8080: pod-0 remote-0")
	for name, text := range map[string]string{"web.yaml": alteredService, "slices.yaml": slices, "cluster.yaml": string(common)} {
		lab.Must(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600))
	}
	s, err := parseSettings(nil)
	lab.Must(t, err)
	for _, a := range alterations {
		t.Run(a.name, func(t *testing.T) {
			state, err := planFolder(r.lab.Node, s, folder, nil, nil)
			lab.Must(t, err)
			lab.Must(t, state.program(r.lab.Node))
			nftProgram := program{"nft", []string{"nft"}}
			input := handles(t, r.lab.Node, a.input)
			lab.Must(t, lab.Err(nftProgram.run(r.lab.Node, input, "-f", "-")))
			l := line{from: "pod-1", to: netip.MustParseAddrPort("10.96.0.10:80"), protocol: inet.TCP}
			if a.sticky {
				l.to = netip.MustParseAddrPort("10.96.0.11:80")
			}
			got, foretold := r.traced(t, l)
			sent := r.sent(t, l)
			if diff := cmp.Diff(a.want, foretold); diff != "" {
				t.Errorf("foretold (-want +got):\n%s%+v", diff, got)
			}
			if a.want[0] == "lost" {
				a.want = []string{"timed out"}
			}
			lab.Same(t, a.want, sent, "packets")
			why := got.Why
			for _, way := range got.Ways {
				why += "; " + way.Why
				if a.refused > 0 && way.Outcome == trace.Refused && way.Probability != a.refused {
					t.Errorf("refused with probability %v, want %v", way.Probability, a.refused)
				}
			}
			lab.Contains(t, why, "why", a.why)
			lab.Must(t, r.lab.Node.Do(func() error { _, err := apply.Cleanup(""); return err }))
		})
	}
}

// traced returns the trace of a line's packet, with its possible results.
func (r *rig) traced(t *testing.T, l line) (got *trace.Trace, foretold []string) {
	t.Helper()
	err := r.lab.Node.Do(func() error {
		conn, err := nft.Open()
		if err != nil {
			return err
		}
		defer conn.Close() //nolint:errcheck // read only
		table, err := read.Load(conn, inet.IPv4, plan.TableName)
		if err != nil {
			return err
		}
		p, err := trace.From(r.lab.Pods[1].IPv4, l.to, l.protocol, host.Routes{})
		if err == nil {
			got, err = trace.Follow(trace.Config{Table: table, Elements: conn, Routes: host.Routes{}}, p)
		}
		return err
	})
	lab.Must(t, err)
	for _, w := range got.Ways {
		foretold = append(foretold, r.inWords(w, l)...)
	}
	slices.Sort(foretold)
	return got, slices.Compact(foretold)
}

// sent sends enough packets that, of two possible ways, each is taken almost certainly.
func (r *rig) sent(t *testing.T, l line) (seen []string) {
	t.Helper()
	const tries = 30
	for range tries {
		a := probe(t.Context(), r.lab.Pods[1], l, nothingIn)
		if a.Outcome == lab.TimedOut {
			return []string{"timed out"}
		}
		text := fmt.Sprint(a.Outcome)
		if a.Outcome == lab.Answered {
			text = fmt.Sprintf("%s sees %s", a.Server, a.Source.Addr())
		}
		seen = append(seen, text)
	}
	slices.Sort(seen)
	return slices.Compact(seen)
}

// rulePlace matches a placeholder for the handle of a chain's rule, counted from the end.
var rulePlace = regexp.MustCompile(`RULE\(([^,]+),-(\d)\)`)

// handles replaces placeholders in nft's input by the handles of rules.
func handles(t *testing.T, h *lab.Host, input string) string {
	t.Helper()
	var table *read.Table
	err := h.Do(func() error {
		conn, err := nft.Open()
		if err != nil {
			return err
		}
		defer conn.Close() //nolint:errcheck // read only
		table, err = read.Load(conn, inet.IPv4, plan.TableName)
		return err
	})
	lab.Must(t, err)
	return rulePlace.ReplaceAllStringFunc(input, func(place string) string {
		m := rulePlace.FindStringSubmatch(place)
		rules := table.Chains[m[1]].Rules
		return fmt.Sprint(rules[len(rules)-int(m[2][0]-'0')].Handle)
	})
}

const alteredService = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: sticky, namespace: shop}
spec: {clusterIP: 10.96.0.11, clusterIPs: [10.96.0.11], ports: [{name: http, port: 80}], sessionAffinity: ClientIP}
`
