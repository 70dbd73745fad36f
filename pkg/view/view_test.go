package view

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
	"unsafe"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/outcome"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// printed returns a value's text.
func printed(t *testing.T, text func(*Printer), set ...func(*Printer)) string {
	t.Helper()
	var b bytes.Buffer
	p := NewPrinter(&b)
	for _, f := range set {
		f(p)
	}
	text(p)
	lab.Must(t, p.Err())
	return b.String()
}

func wide(p *Printer)    { p.Wide = true }
func colored(p *Printer) { p.Color = true }

func TestTable(t *testing.T) {
	table := func(p *Printer) {
		p.Table([]string{"NAME", "N"}, [][]Cell{{{Text: "größe"}, {Text: "1", Style: Bad}}, {{Text: "b\x1b[2J"}, {}}, cells("only")})
	}
	lab.Same(t, "NAME      N\ngröße     1\nb\\x1b[2J\nonly\n", printed(t, table), "")
	// Colours only add escape sequences.
	with := printed(t, table, colored)
	lab.Contains(t, with, "with", "\x1b[31m1\x1b[0m")
	for _, s := range []Style{Good, Warn, Bad, Dim, Bold, endOfStyle} {
		with = strings.ReplaceAll(with, string(s), "")
	}
	lab.Same(t, printed(t, table), with, "without the escape sequences")
}

// No character of a tenant's text reaches the terminal unless it is printable, also if the caller does not escape the
// text.
func TestOnlyPrintableTextIsWritten(t *testing.T) {
	const evil = "a\x1b[2J\a\u202eb\u2066"
	text := func(p *Printer) {
		p.Printf("%s: %s\n", p.Paint(Bad, "zone"), evil)
		p.Table(nil, [][]Cell{{{Text: evil, Style: Good}, {Text: "x\ny"}}})
	}
	const shown = `a\x1b[2J\a\u202eb\u2066`
	lab.Same(t, "zone: "+shown+"\n"+shown+"  x\\ny\n", printed(t, text), "without colours")
	lab.Same(t, string(Bad)+"zone"+endOfStyle+": "+shown+"\n"+string(Good)+shown+endOfStyle+"  x\\ny\n", printed(t, text, colored), "with colours")
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestErrorsOfWriting(t *testing.T) {
	p := NewPrinter(full{})
	p.Table(nil, [][]Cell{cells("a"), cells("b")})
	if p.Err() == nil {
		t.Error("no error")
	}
}

func sample() *Services {
	return &Services{Node: "n", NodePortAddresses: []string{"192.0.2.1", "2001:db8::1"}, Services: []Service{{
		Namespace: "default", Name: "web", Problems: []string{"something can't be used"},
		Ports: []ServicePort{{
			Name: "http", Protocol: "tcp", Family: "IPv4", AffinitySeconds: 60,
			Frontends: []Frontend{
				{Address: "10.96.0.1:80", Kind: "ClusterIP", Policy: "Cluster", Endpoints: 1, Connections: new(uint64(7))},
				{Address: "30080", Kind: "NodePort", Policy: "Local", FromThisNode: new(1),
					Message: "dropped", Normal: true,
					Connections: new(uint64(0)), Refused: new(uint64(7)), Dropped: 6, AllowedSources: []string{"a", "b", "c", "d", "e"}},
			},
			Endpoints: []Endpoint{
				{Address: "10.1.1.1:8080", Node: "m", Pod: "web-1", Conditions: "ready", Cluster: true, Message: "not for policy Local: it isn't here"},
				{Address: "10.1.1.2:8080", Conditions: "not ready", OnThisNode: true, Message: "not ready", Slice: "web-x"},
			},
		}, {
			Protocol: "udp", Family: "IPv6", MaxConnections: 100, AtMaximum: "refuse", Full: 12, Why: "no pod is ready",
			Frontends: []Frontend{{Address: "[fd00::1]:80", Kind: "ClusterIP", Policy: "Cluster", Message: "refused"}},
		}},
	}}}
}

func TestServices(t *testing.T) {
	want := `SERVICE           TYPE       ADDRESS           ENDPOINTS  CONNECTIONS
default/web:http  ClusterIP  10.96.0.1:80/TCP  1 of 2     7
default/web:http  NodePort   *:30080/TCP       0 of 2     0
  note: dropped; connections: 1 refused, 6 dropped; allowed sources: a, b, c, d and 1 more
default/web       ClusterIP  [fd00::1]:80/UDP  0          -
  PROBLEM refused; at most 100 connections of each endpoint, then refuse (12 so far)
  PROBLEM something can't be used

kube-nftproxy services NAMESPACE/NAME shows each endpoint, and why it is unused.
`
	lab.Same(t, want, printed(t, sample().Text), "")
	if got := printed(t, sample().Text, func(p *Printer) { p.NoHeaders = true }); strings.Contains(got, "SERVICE") || strings.Contains(got, "shows each") {
		t.Errorf("without headers:\n%s", got)
	}
	want = `Service default/web

  port http, tcp, IPv4, session affinity for 60 s
    ClusterIP  10.96.0.1:80        policy Cluster           1 of 2 endpoints  7 connections
    NodePort   30080 on 192.0.2.1  policy Local (external)  0 of 2 endpoints  0 connections
      dropped; connections: 1 refused, 6 dropped; this node's pods and processes: 1 endpoint; allowed sources: a, b, c,
      d, e
    + 10.1.1.1:8080  ready      on m          pod web-1    not for policy Local: it isn't here
    - 10.1.1.2:8080  not ready  on this node  pod unknown  not ready

  port without a name, udp, IPv6, at most 100 connections of each endpoint, then refuse (12 so far)
    ClusterIP  [fd00::1]:80  policy Cluster  0 endpoints
      refused
    no endpoints: no pod is ready

PROBLEM default/web: something can't be used
`
	lab.Same(t, want, printed(t, sample().Detail), "")
	styles := regexp.MustCompile("\x1b\\[[0-9]+m")
	lab.Same(t, want, styles.ReplaceAllString(printed(t, sample().Detail, colored), ""), "in colours")
	for _, want := range []string{
		"no pod is ready", "allowed sources: a, b, c, d, e", "POLICY", "Local (external)", "AFFINITY", "ClientIP 60s",
	} {
		lab.Contains(t, printed(t, sample().Text, wide), "wide", want)
	}
}

// TestOnlyWrong: OnlyWrong removes Services and frontends that work.
func TestOnlyWrong(t *testing.T) {
	v := sample()
	v.Services[0].Problems = nil
	v.Services = append(v.Services, Service{Namespace: "default", Name: "fine", Ports: []ServicePort{{Frontends: []Frontend{{Endpoints: 1}}}}})
	v.OnlyWrong()
	want := `SERVICE      TYPE       ADDRESS           ENDPOINTS  CONNECTIONS
default/web  ClusterIP  [fd00::1]:80/UDP  0          -
  PROBLEM refused; at most 100 connections of each endpoint, then refuse (12 so far)
`
	if got := printed(t, v.Text); !strings.HasPrefix(got, want) {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

// TestWidth: lines are shorter than 120 characters, unless a name or an address alone is longer. No line break is inside a command.
func TestWidth(t *testing.T) {
	v := sample()
	s := &v.Services[0]
	s.Namespace, s.Name = "payments", "checkout-api"
	const command = "(ss -ltnp sport = :32123 shows the process)"
	s.Problems = []string{strings.Repeat("a long text of many words ", 7) + command + strings.Repeat(" (a long text in parentheses", 20) + ")"}
	s.Notes = s.Problems
	for i := range s.Ports[0].Frontends {
		f := &s.Ports[0].Frontends[i]
		f.Kind, f.Address = "LoadBalancer", "203.0.113.8:443"
		f.Message, f.AllowedSources = strings.Repeat("a long reason ", 20), slices.Repeat([]string{"198.51.100.0/24"}, 40)
	}
	for name, text := range map[string]func(*Printer){"list": v.Text, "detail": v.Detail} {
		got := printed(t, text)
		if !strings.Contains(got, command) {
			t.Errorf("%s breaks %q:\n%s", name, command, got)
		}
		for line := range strings.Lines(got) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n >= 120 {
				t.Errorf("%s: %d characters: %s", name, n, line)
			}
		}
	}
}

func TestNames(t *testing.T) {
	for _, c := range []struct {
		list []string
		more int
		want string
	}{
		{nil, 0, ""}, {[]string{"a"}, 0, "a"}, {[]string{"a", "b", "c", "d"}, 0, "a, b, c, d"}, {[]string{"a", "b", "c", "d", "e", "f"}, 0, "a, b, c, d and 2 more"},
		{[]string{"a"}, 3, "a and 3 more"}, {[]string{"a", "b", "c", "d", "e"}, 2, "a, b, c, d and 3 more"},
	} {
		lab.Same(t, c.want, Names(c.list, c.more), "Names(%q, %d)", c.list, c.more)
	}
}

func TestWrongServices(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Service)
		want   bool
	}{
		"fine":                          {func(*Service) {}, false},
		"a problem":                     {func(s *Service) { s.Problems = []string{"x"} }, true},
		"an endpoint for no port":       {func(s *Service) { s.Unusable = []Endpoint{{}} }, true},
		"an address of another Service": {func(s *Service) { s.Ports[0].Frontends[0].Lose("default/other") }, true},
		"a frontend without endpoints":  {func(s *Service) { s.Ports[0].Frontends[0].Endpoints = 0 }, true},
		"policy Local without endpoints on this node": {func(s *Service) {
			s.Ports[0].Frontends[0].Endpoints = 0
			s.Ports[0].Frontends[0].SetOutcome(outcome.NoLocalEndpoints)
		}, false},
	} {
		v := Services{Services: []Service{{Ports: []ServicePort{{Frontends: []Frontend{{Endpoints: 1}}}}}}}
		c.change(&v.Services[0])
		lab.Same(t, c.want, v.Wrong(), "%s: Wrong()", name)
	}
}

func healthy() *Status {
	now := time.Unix(1000, 0)
	ago := func(d time.Duration) *time.Time { return new(now.Add(-d)) }
	return &Status{
		SchemaVersion: SchemaVersion, Node: "n", Version: "v1", Kernel: "6.18", Time: now, Started: now.Add(-time.Hour), Healthy: true, Live: true, Eligible: true, Mode: "iptables", LocalMode: "ClusterCIDR",
		Families: []string{"IPv4"}, Counts: Counts{Services: 1, Endpoints: 2, Elements: map[string]int{"IPv4": 30}},
		API: API{Source: "https://a", Answers: true, AnswerMicros: 1500, LastEvent: ago(time.Second)},
		Loop: &Loop{
			Last: &Sync{Time: *ago(2 * time.Second), Kind: "partial", Services: []string{"default/web"}, More: 3, Elements: 5, CommitMicros: 90, TotalMicros: 200},
		},
		Features: []Feature{{"new (9.9)", false}, {"old (1.1)", true}},
		Findings: []Finding{{Severity: Note, Reason: ConntrackStrict, Object: "Node n", What: "a note", Impact: "nothing", Fix: "do nothing", Affects: "nothing"}},
	}
}

func TestStatus(t *testing.T) {
	want := `health      healthy
node        n, kernel 6.18, without: new (9.9)
program     kube-nftproxy v1, started 1h0m0s ago
serves      IPv4, as mode iptables, local pods by ClusterCIDR
counts      1 Service, 2 endpoints, elements IPv4 30
API server  https://a, last change received 1s ago, answers in 1.5ms
last sync   2s ago, partial for default/web and 3 more, 5 elements, in 200µs (kernel 90µs)
pending     nothing
repairs     none since the start

No problem found on this node.
1 note with -o wide.
`
	lab.Same(t, want, printed(t, healthy().Text), "")
	bad := healthy()
	bad.API.Answers, bad.API.Error = false, "connection refused"
	bad.API.Failures = []WatchFailure{{Resource: "services", Times: 3, Last: bad.Time, Error: "it is forbidden"}}
	bad.Loop.Failure = &Failure{Error: "no space", Since: bad.Started, Times: 9}
	bad.Loop.Pending, bad.Loop.OldestChange = 2, &bad.Started
	bad.Loop.Repairs, bad.Loop.RepairsTotal = []Repair{{bad.Time, "foreign_change", "no table", "nft (pid 1)", "nft"}}, 5
	bad.Ports = []Port{{"healthz", "0.0.0.0:10256", "address already in use"}, {"metrics", "127.0.0.1:10249", ""}, {"other", "", ""}}
	bad.ConfigFile = "/config.conf"
	bad.Findings = []Finding{
		{Warning, SlowCommits, "Node n", "another fact", "little", "do that", "you"}, {Wrong, SyncFailing, "Node n", "a fact", "much", "do this", "only this node"},
	}
	bad.Conclude()
	got := printed(t, bad.Text)
	for _, want := range []string{
		"health      unhealthy: a fact (1 warning)\n", "does not answer: connection refused",
		"failing     since 1h0m0s ago, 9 times: no space",
		"pending     2 Services, the oldest change is 1h0m0s old", "0s ago (foreign_change): no table, ruleset last changed by nft (pid 1)",
		"ports       healthz cannot listen at 0.0.0.0:10256, metrics at 127.0.0.1:10249, other off\n", "config      /config.conf\n",
		"WRONG a fact\n    reason:  SyncFailing, Node n\n    impact:  much\n    fix:     do this\n    affects: only this node\nWARNING another fact\n",
	} {
		lab.Contains(t, got, "output", want)
	}
}

// reasons returns all reasons, as the source declares them.
func reasons(t *testing.T) (list []Reason) {
	t.Helper()
	text, err := os.ReadFile("finding.go")
	lab.Must(t, err)
	for _, m := range regexp.MustCompile(`(?m)^\t(\w+) +Reason = "(\w+)"$`).FindAllSubmatch(text, -1) {
		lab.Same(t, string(m[2]), string(m[1]), "the constant %s has the value %s", m[1], m[2])
		list = append(list, Reason(m[2]))
	}
	if len(list) < 45 {
		t.Fatalf("only %d reasons", len(list))
	}
	return list
}

// TestHealthAgreesWithFindings has a finding with each reason and severity beside another finding. The health in JSON, the health in text and the
// result that becomes the exit code follow from the findings.
func TestHealthAgreesWithFindings(t *testing.T) {
	for _, reason := range reasons(t) {
		for _, severity := range severities {
			for _, beside := range severities {
				s := healthy()
				s.Findings = []Finding{
					{beside, "Other", "Node n", "beside", "impact", "fix", "affects"}, {severity, reason, "Node n", "the fact", "the impact", "the fix", "the affected"},
				}
				s.Conclude()
				bad := severity == Wrong || beside == Wrong
				text := printed(t, s.Text, wide)
				b, err := json.Marshal(s)
				lab.Must(t, err)
				first, _, _ := strings.Cut(text, "\n")
				for what, got := range map[string]bool{
					"Wrong": s.Wrong(), "JSON": strings.Contains(string(b), `"healthy":false`), "text": strings.Contains(first, "unhealthy: "),
					"marks": strings.Contains(text, "\nWRONG "),
				} {
					if got != bad {
						t.Errorf("%s %s beside %s: %s is %v, want %v:\n%s", severity, reason, beside, what, got, bad, text)
					}
				}
				lab.Contains(t, text, "the text",
					string(reason)+", Node n", "the fact", "the impact", "the fix", "the affected")
				if !strings.Contains(string(b), `"schemaVersion":1`) || !strings.Contains(string(b), `"reason":"`+string(reason)+`"`) {
					t.Errorf("the JSON lacks the version or %s: %s", reason, b)
				}
			}
		}
	}
}

func TestCommits(t *testing.T) {
	c := Commit{Time: time.Unix(0, 0), Kind: "partial", Elements: 3, PlanMicros: 10, CommitMicros: 20, More: 1, Lost: 2, Services: []Change{
		{Service: "default/a", What: "changed", Added: []string{"1", "2", "3", "4", "5", "6"}, Removed: []string{"7"}}, {Service: "default/b", What: "gone"},
	}}
	got := printed(t, c.Text)
	for _, want := range []string{
		"(2 commits skipped: the terminal is too slow)", "default/a changed +1 +2 +3 +4 +2 more -7  3 elements, plan 10µs, kernel 20µs", "default/b gone  (same batch)",
		"... and 1 more in the same batch",
	} {
		lab.Contains(t, got, "output", want)
	}
	failed := Commit{Failed: "no space"}
	lab.Contains(t, printed(t, failed.Text), "output", "FAILED no space")
}

func TestVerification(t *testing.T) {
	one := Verification{Tables: 1, Rules: 3, Elements: 4}
	lab.Contains(t, printed(t, one.Text), "output", "OK: 1 table, 3 rules")
	v := Verification{Tables: 2, Rules: 3, Elements: 4, Generation: 5, Passing: &Difference{Table: "ip x", In: "map m", Key: "k", Have: "1", Want: "2", Service: "default/web"}}
	got := printed(t, v.Text)
	if want := "OK: 2 tables, 3 rules and 4 elements match the plan (ruleset generation 5).\nAn earlier comparison found a difference that is gone now " +
		"(a change in progress, or repaired): table ip x, map m, k (default/web): is 1, should be 2\n"; got != want {
		t.Errorf("got %q", got)
	}
	v.Flows = &Flows{Read: 9, StaleTotal: 1, Stale: []Flow{{"udp", "10.0.0.1:5", "10.96.0.1:53", "10.1.1.1:53", "default/dns", true}}, RemovedTotal: 3,
		Removed: []Flow{{"tcp", "[fd00::1]:5", "[fd00::2]:53", "[fd00::3]:53", "default/web", true}}}
	v.Conclude("n")
	got = printed(t, v.Text, wide)
	for _, want := range []string{
		"STALE: of 9 entries of connection tracking, 1 is stale, and 3 lead to removed endpoints.\nSTALE default/dns, udp: 10.0.0.1:5 -> 10.96.0.1:53, to 10.1.1.1:53\n" +
			"REMOVED ENDPOINT default/web, tcp: [fd00::1]:5 -> [fd00::2]:53, to [fd00::3]:53\n... and 2 more\n",
		"WRONG 1 entry of connection tracking contradict", "conntrack -D -p udp -s 10.0.0.1 -d 10.96.0.1 --sport 5 --dport 53", "NOTE 3 established TCP connections lead to",
	} {
		lab.Contains(t, got, "output", want)
	}
	if v.Flows.StaleTotal = 0; !v.Wrong() {
		t.Error("stale flows are not wrong")
	}
	if v.Conclude("n"); v.Wrong() {
		t.Error("connections to removed endpoints are wrong")
	}
	v = Verification{Total: 2, Differences: []Difference{{Table: "ip x", Want: "there"}}}
	if got, want := printed(t, v.Text), "DIFFERENT table ip x: missing, should be there\n... and 1 more\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for want, list := range map[string][]Difference{
		"connections to default/api, default/web may": {
			{Service: "default/web"}, {Service: "default/api"}, {Service: "default/web"},
		},
		"connections to the affected Services may": {{Service: "default/web"}, {In: "chain services"}},
	} {
		v = Verification{Total: len(list), Differences: list}
		v.Conclude("n")
		if got := printed(t, v.Text); !strings.HasPrefix(got, "WRONG") || !strings.Contains(got, want) {
			t.Errorf("no %q before the differences:\n%s", want, got)
		}
	}
}

// TestDiff: the Services come before the lines.
func TestDiff(t *testing.T) {
	var d Diff
	lab.Same(t, "", printed(t, d.Text), "without differences")
	d.Differences = []DiffLine{{Wanted: true, Where: "ip chain x"}}
	d.Shared = []string{"ip chain x"}
	lab.Same(t, "0 Services differ\n"+
		"Other differences, which concern this node or all Services: ip chain x\n\n+ ip chain x\n", printed(t, d.Text), "")
	for i := range mostChanges + 2 {
		c := Change{Service: fmt.Sprint("default/", i), What: "changed", Added: []string{"10.0.0.1:80"}}
		d.Services = append(d.Services, c)
	}
	if got := printed(t, d.Text); !strings.HasPrefix(got, "22 Services differ\n  default/0 changed +10.0.0.1:80\n") ||
		!strings.Contains(got, "  default/19 changed +10.0.0.1:80\n... and 2 more\n") {
		t.Error(got)
	}
}

// TestJSON: an empty list is [] in JSON, not null, as scripts expect.
func TestJSON(t *testing.T) {
	b, err := json.Marshal(Services{NodePortAddresses: []string{}, Services: []Service{}})
	if err != nil || string(b) != `{"node":"","nodePortAddresses":[],"services":[]}` {
		t.Errorf("%s, %v", b, err)
	}
}

// TestOutdatedServices: in an outage of the API server, the output says that it has no changes since then.
func TestOutdatedServices(t *testing.T) {
	const want = "MAY BE OUTDATED: the API server has not answered for 1h0m0s, so this output has no changes since then"
	for _, c := range []struct {
		v    Services
		want bool
	}{{Services{}, false}, {Services{Unanswered: 3600}, true}, {Services{Unanswered: 3600,
		Unread: []string{"services"}}, false}} {
		for name, text := range map[string]func(*Printer){"table": c.v.Text, "detail": c.v.Detail} {
			var out bytes.Buffer
			text(NewPrinter(&out))
			if strings.HasPrefix(out.String(), want) != c.want {
				t.Errorf("%s of %+v: %q", name, c.v, out.String())
			}
		}
	}
}

// TestAgesAfterTheClockWasSet: the JSON form has the right ages, although the clock was set since the times were read.
func TestAgesAfterTheClockWasSet(t *testing.T) {
	now := time.Now()
	for _, jump := range []time.Duration{24 * time.Hour, -24 * time.Hour, 0} {
		ago := func(d time.Duration) *time.Time { return new(now.Add(-d)) }
		s := &Status{Time: set(now, jump), Started: *ago(time.Hour),
			API: API{LastEvent: ago(time.Second), Since: ago(2 * time.Second),
				Failures: []WatchFailure{{Last: *ago(3 * time.Second)}}},
			Loop: &Loop{Last: &Sync{Time: *ago(4 * time.Second)}, LastSent: &Sync{Time: *ago(5 * time.Second)},
				Failure: &Failure{Since: *ago(6 * time.Second)}, Repairs: []Repair{{Time: *ago(7 * time.Second)}},
				OldestChange: ago(8 * time.Second), LeaseRenewed: ago(9 * time.Second), LeaseEnds: ago(-10 * time.Second)},
		}
		s.ByClock()
		data, err := json.Marshal(s)
		lab.Must(t, err)
		var got Status
		lab.Must(t, json.Unmarshal(data, &got))
		var ages []time.Duration
		for _, at := range []time.Time{got.Started, *got.API.LastEvent, *got.API.Since, got.API.Failures[0].Last,
			got.Loop.Last.Time, got.Loop.LastSent.Time,
			got.Loop.Failure.Since, got.Loop.Repairs[0].Time, *got.Loop.OldestChange, *got.Loop.LeaseRenewed,
			*got.Loop.LeaseEnds} {
			ages = append(ages, got.Time.Sub(at)/time.Second)
		}
		lab.Same(t, []time.Duration{3600, 1, 2, 3, 4, 5, 6, 7, 8, 9, -10}, ages, "ages in seconds after a jump by %v", jump)
	}
}

// set returns a time as time.Now would return it if the clock had been set: the field wall of time.Time has the seconds
// from bit 30.
func set(now time.Time, by time.Duration) time.Time {
	wall := (*uint64)(unsafe.Pointer(&now))
	*wall += uint64(int64(by/time.Second) << 30)
	return now
}
