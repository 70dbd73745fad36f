package view

import (
	"fmt"
	"strings"
	"time"
)

// SchemaVersion is the version of the JSON form of [Status] and [Preflight]. It increases when a field is removed or
// renamed, or its meaning changes. It stays the same when fields or reasons are added.
const SchemaVersion = 1

// Status describes the daemon and its node.
type Status struct {
	// SchemaVersion is the constant of the same name.
	SchemaVersion int    `json:"schemaVersion"`
	Node          string `json:"node"`
	Version       string `json:"version"`
	// Kernel is the release of the running kernel.
	Kernel   string    `json:"kernel"`
	Features []Feature `json:"features"`
	Time     time.Time `json:"time"`
	Started  time.Time `json:"started"`
	// Healthy is true if no finding is wrong. [Status.Conclude] sets it.
	Healthy bool `json:"healthy"`
	// Live is the result of /livez. Eligible is the Node's part of /healthz: false until the Node is known, and while
	// it is being deleted. Ready is the result of /readyz: true after the first sync. If it is false, a finding has the
	// reason.
	Live     bool `json:"live"`
	Ready    bool `json:"ready"`
	Eligible bool `json:"eligible"`
	// Mode is the configured mode of kube-proxy. The program uses nftables in any mode.
	Mode      string `json:"mode"`
	LocalMode string `json:"detectLocalMode"`
	// ConfigFile is the configuration file, or empty.
	ConfigFile string `json:"configFile,omitempty"`
	// Ports are the program's HTTP servers.
	Ports    []Port   `json:"ports,omitempty"`
	Families []string `json:"families"`
	Counts   Counts   `json:"counts"`
	Loop     *Loop    `json:"loop,omitempty"`
	API      API      `json:"api"`
	// ServiceProxyName is the value of the label that all served Services have. It is absent if the program serves the
	// Services without the label.
	ServiceProxyName string `json:"serviceProxyName,omitempty"`
	// Loopback is absent if node ports are not served on loopback.
	Loopback *Loopback `json:"loopback,omitempty"`
	// Findings are the problems of the program and of this node, the most severe first.
	Findings Findings `json:"findings"`
}

// Port is an HTTP server of the program.
type Port struct {
	// Name is healthz or metrics. Address is empty if the server is off. Error is the reason why the program cannot
	// listen.
	Name    string `json:"name"`
	Address string `json:"address"`
	Error   string `json:"error,omitempty"`
}

// Feature is a kernel feature.
type Feature struct {
	Name string `json:"name"`
	Has  bool   `json:"has"`
}

// Counts are numbers of objects and elements.
type Counts struct {
	Services int `json:"services"`
	// Endpoints counts endpoints in EndpointSlices of Services, used or not.
	Endpoints int `json:"endpoints"`
	// Problems counts Services with parts that are not programmed, or with a health check port that is not served.
	// Conflicts counts the frontends that more than one Service claims.
	Problems  int            `json:"problems"`
	Conflicts int            `json:"conflicts"`
	Elements  map[string]int `json:"elements"`
}

// Loopback describes the node ports that the program serves on loopback.
type Loopback struct {
	Addresses []string `json:"addresses"`
	// Listeners is the number of open ports. Failures is the number of ports on which the program cannot listen.
	Listeners   int `json:"listeners"`
	Connections int `json:"connections"`
	Failures    int `json:"failures,omitempty"`
}

// Loop describes the sync loop.
type Loop struct {
	// Waits names the condition that the loop waits for before its first sync; empty after it.
	Waits string `json:"waits,omitempty"`
	// Other names another instance that serves while this one stands by.
	Other string `json:"otherInstance,omitempty"`
	// Last is the last successful sync. LastSent is the last successful sync that sent a batch.
	Last     *Sync    `json:"last,omitempty"`
	LastSent *Sync    `json:"lastSent,omitempty"`
	Failure  *Failure `json:"failure,omitempty"`
	Syncs    uint64   `json:"syncs"`
	// Pending is the number of changed Services that are not programmed yet. OldestChange is the time of the first
	// change of them.
	Pending      int        `json:"pending"`
	OldestChange *time.Time `json:"oldestChange,omitempty"`
	// Repairs are the last repairs, the newest last. RepairsTotal is the number of all repairs.
	Repairs      []Repair `json:"repairs,omitempty"`
	RepairsTotal int      `json:"repairsTotal"`
	// LeaseRenewed is the time when the lease was last renewed. LeaseEnds is the time when it expires.
	LeaseRenewed *time.Time `json:"leaseRenewed,omitempty"`
	LeaseEnds    *time.Time `json:"leaseEnds,omitempty"`
}

// Sync is a successful sync.
type Sync struct {
	Time time.Time `json:"time"`
	// Kind is nothing, adopted, partial or full. Why is the reason if it is full.
	Kind string `json:"kind"`
	Why  string `json:"message,omitempty"`
	// Services are the first changed Services. More is the number of the other changed Services.
	Services     []string `json:"services,omitempty"`
	More         int      `json:"more,omitempty"`
	Elements     int      `json:"elements"`
	Bytes        int      `json:"bytes"`
	PlanMicros   int64    `json:"planMicroseconds"`
	CommitMicros int64    `json:"commitMicroseconds"`
	TotalMicros  int64    `json:"totalMicroseconds"`
}

// Failure is a failing sync.
type Failure struct {
	Error string    `json:"error"`
	Since time.Time `json:"since"`
	Times int       `json:"times"`
	// Fix is the smallest change that may help. Affects lists everything else that this change affects.
	Fix     string `json:"fix"`
	Affects string `json:"affects"`
}

// Repair is a full sync because the tables differed from the plan.
type Repair struct {
	Time time.Time `json:"time"`
	// Reason is the reason of the comparison, and Why is the difference. By is the process that last changed the
	// ruleset.
	Reason string `json:"reason"`
	Why    string `json:"message"`
	By     string `json:"by,omitempty"`
	// Program is the name of the program in By, or "".
	Program string `json:"-"`
}

// API describes the connection to the source of objects.
type API struct {
	// Source is the API server's address, or the folder of manifests.
	Source string `json:"source"`
	// Answers is true if the API server answers. AnswerMicros is the duration of its answer. Error is the error if it
	// does not answer, or its answer if this is a server error.
	Answers      bool   `json:"answers"`
	AnswerMicros int64  `json:"answerMicroseconds,omitempty"`
	Error        string `json:"error,omitempty"`
	// Since is the time since when the API server has not answered; absent while it answers. Answered is true if it has
	// answered since the start of the program. Remedy is the fix if requests fail for another reason than an outage.
	Since    *time.Time `json:"unansweredSince,omitempty"`
	Answered bool       `json:"hasAnswered,omitempty"`
	Remedy   string     `json:"-"`
	// Proxy is the HTTP proxy of the requests, or empty. TokenFile is the file with their token, or empty.
	Proxy     string `json:"proxy,omitempty"`
	TokenFile string `json:"-"`
	// TakenBy is the Service that has the address of the API server as a load-balancer IP or external IP, or empty.
	TakenBy string `json:"-"`
	// LastEvent is the time of the last received change.
	LastEvent *time.Time `json:"lastEvent,omitempty"`
	// FromSnapshot is the time of the snapshot whose objects are served until the API server confirms them; absent if
	// it has sent or confirmed all objects.
	FromSnapshot *time.Time `json:"fromSnapshot,omitempty"`
	// SnapshotError is the reason why the last attempt to read or write a snapshot failed.
	SnapshotError string `json:"snapshotError,omitempty"`
	// Failures are the last failures to list or watch, by resource. They are absent after the resource is watched
	// again.
	Failures []WatchFailure `json:"failures,omitempty"`
}

// WatchFailure describes the failures to list or watch a resource: their number, and the last one.
type WatchFailure struct {
	Resource string    `json:"resource"`
	Times    int       `json:"times"`
	Last     time.Time `json:"last"`
	Error    string    `json:"error"`
	// Forbidden and Unauthorized mark the kinds of failures with a known fix.
	Forbidden    bool `json:"forbidden,omitempty"`
	Unauthorized bool `json:"unauthorized,omitempty"`
	// Unanswered is true if there was no connection, or no answer on it. Remedy is that of [API].
	Unanswered bool   `json:"-"`
	Remedy     string `json:"-"`
	// Over is true if a later attempt succeeded.
	Over bool `json:"-"`
}

// Conclude sorts the findings, and sets Healthy.
func (s *Status) Conclude() {
	s.Findings.Sort()
	s.Healthy = !s.Findings.Wrong()
}

// Wrong reports whether any finding is wrong. It is the opposite of Healthy.
func (s *Status) Wrong() bool { return !s.Healthy }

// Text writes one line for each fact.
func (s *Status) Text(p *Printer) {
	var rows [][]Cell
	row := func(name string, style Style, format string, args ...any) {
		rows = append(rows, []Cell{{name, Bold}, {fmt.Sprintf(format, args...), style}})
	}
	style := Good
	if !s.Healthy {
		style = Bad
	}
	row("health", style, "%s", s.Health())
	row("node", Plain, "%s, kernel %s%s", s.Node, s.Kernel, features(s.Features, p.Wide))
	row("program", Plain, "kube-nftproxy %s, started %s", s.Version, ago(s.Time, s.Started))
	row("serves", Plain, "%s, as mode %s, local pods by %s", strings.Join(s.Families, " and "), s.Mode, s.LocalMode)
	if s.ConfigFile != "" {
		row("config", Plain, "%s", s.ConfigFile)
	}
	s.portRow(row)
	if s.ServiceProxyName != "" {
		row("", Plain, "only Services with the label service.kubernetes.io/service-proxy-name=%s", s.ServiceProxyName)
	}
	row("counts", Plain, "%s, %s, elements %s", Count(s.Counts.Services, "Service"), Count(s.Counts.Endpoints, "endpoint"), byFamily("%s %d", s.Counts.Elements))
	if l := s.Loopback; l != nil {
		row("loopback", Plain, "TCP node ports on %s: %s, %s", strings.Join(l.Addresses, " and "), Count(l.Listeners, "listener"), Count(l.Connections, "connection"))
	}
	s.apiRows(row)
	if s.Loop != nil {
		s.Loop.rows(s.Time, row)
	}
	p.Table(nil, rows)
	p.Printf("\n")
	printFindings(p, s.Findings, "No problem found on this node.")
}

type rowFunc func(name string, style Style, format string, args ...any)

// Health returns one sentence: the result, the first wrong finding, and the numbers of the other ones.
func (s *Status) Health() string {
	var others []string
	wrong, warnings := s.Findings.Count(Wrong), s.Findings.Count(Warning)
	if wrong > 1 {
		others = append(others, Count(wrong-1, "more error"))
	}
	if warnings > 0 {
		others = append(others, Count(warnings, "warning"))
	}
	text := strings.Join(others, ", ")
	switch {
	case !s.Healthy && len(s.Findings) > 0:
		if text != "" {
			text = " (" + text + ")"
		}
		return "unhealthy: " + s.Findings[0].What + text
	case !s.Healthy:
		return "unhealthy"
	case text != "":
		return "healthy, " + text
	}
	return "healthy"
}

func (s *Status) portRow(row rowFunc) {
	var parts []string
	style := Plain
	for _, p := range s.Ports {
		switch {
		case p.Address == "":
			parts = append(parts, p.Name+" off")
		case p.Error != "":
			parts, style = append(parts, p.Name+" cannot listen at "+p.Address), Bad
		default:
			parts = append(parts, p.Name+" at "+p.Address)
		}
	}
	if len(parts) > 0 {
		row("ports", style, "%s", strings.Join(parts, ", "))
	}
}

func (s *Status) apiRows(row rowFunc) {
	name, what := "API server", s.API.Source
	if s.API.Proxy != "" {
		what += " by the proxy " + s.API.Proxy
	}
	if s.API.LastEvent != nil {
		what += ", last change received " + ago(s.Time, *s.API.LastEvent)
	}
	switch {
	case s.API.Remedy != "":
		row(name, Bad, "%s: requests fail: %s", what, s.API.Error)
	case !s.API.Answers:
		since := "does not answer"
		if s.API.Since != nil && s.Time.Sub(*s.API.Since) >= time.Second {
			since = "has not answered for " + short(s.Time.Sub(*s.API.Since))
		}
		row(name, Bad, "%s: %s: %s", what, since, s.API.Error)
	case s.API.Error != "":
		row(name, Bad, "%s, answers with an error: %s", what, s.API.Error)
	case s.API.AnswerMicros == 0:
		row("objects", Plain, "%s", what)
	default:
		row(name, Plain, "%s, answers in %s", what, micros(s.API.AnswerMicros))
	}
	if at := s.API.FromSnapshot; at != nil {
		row("snapshot", Warn, "serves the objects of %s, which the API server has not "+
			"confirmed", at.UTC().Format(time.RFC3339))
	}
}

func (l *Loop) rows(now time.Time, row rowFunc) {
	if l.Waits != "" {
		row("loop", Bad, "this process has programmed nothing yet: waiting %s", l.Waits)
		return
	}
	if l.Last != nil {
		row("last sync", Plain, "%s", l.Last.text(now))
	}
	if l.LastSent != nil && (l.Last == nil || !l.LastSent.Time.Equal(l.Last.Time)) {
		row("last sent", Plain, "%s", l.LastSent.text(now))
	}
	if f := l.Failure; f != nil {
		row("failing", Bad, "since %s, %d times: %s", ago(now, f.Since), f.Times, f.Error)
	}
	pending, style := "nothing", Plain
	if l.Pending > 0 {
		pending, style = Count(l.Pending, "Service"), Warn
	}
	if l.OldestChange != nil {
		pending += fmt.Sprintf(", the oldest change is %s old", short(now.Sub(*l.OldestChange)))
	}
	row("pending", style, "%s", pending)
	if l.LeaseEnds != nil {
		row("lease", Plain, "renewed %s, expires in %s unless renewed", ago(now, *l.LeaseRenewed), short(l.LeaseEnds.Sub(now)))
	}
	if l.RepairsTotal == 0 {
		row("repairs", Plain, "none since the start")
		return
	}
	row("repairs", Warn, "%d since the start; the last ones:", l.RepairsTotal)
	for _, r := range l.Repairs {
		by := ""
		if r.By != "" {
			by = ", ruleset last changed by " + r.By
		}
		row("", Warn, "%s (%s): %s%s", ago(now, r.Time), r.Reason, r.Why, by)
	}
}

func (s *Sync) text(now time.Time) string {
	what := s.Kind
	if s.Why != "" {
		what += " (" + s.Why + ")"
	}
	if len(s.Services) > 0 {
		what += " for " + Names(s.Services, s.More)
	}
	return fmt.Sprintf("%s, %s, %s, in %s (kernel %s)", ago(now, s.Time), what, Count(s.Elements, "element"), micros(s.TotalMicros), micros(s.CommitMicros))
}

// features returns the missing features, or all if wide.
func features(list []Feature, wide bool) string {
	var lacks, has []string
	for _, f := range list {
		if f.Has {
			has = append(has, f.Name)
		} else {
			lacks = append(lacks, f.Name)
		}
	}
	out := ""
	if len(lacks) > 0 {
		out += ", without: " + strings.Join(lacks, ", ")
	}
	if wide && len(has) > 0 {
		out += ", with: " + strings.Join(has, ", ")
	}
	return out
}

func micros(n int64) string { return (time.Duration(n) * time.Microsecond).String() }

// ByClock expresses all times by the clock as it is at the time of the status. The program measures ages with a clock
// that is never set, but a reader of the JSON form has only the times.
func (s *Status) ByClock() {
	at := func(t *time.Time) {
		if !t.IsZero() {
			*t = s.Time.Add(t.Sub(s.Time))
		}
	}
	copied := func(t **time.Time) { // another goroutine may read the old one
		if *t != nil {
			*t = new(**t)
			at(*t)
		}
	}
	at(&s.Started)
	copied(&s.API.LastEvent)
	copied(&s.API.Since)
	for i := range s.API.Failures {
		at(&s.API.Failures[i].Last)
	}
	l := s.Loop
	if l == nil {
		return
	}
	for _, sync := range []*Sync{l.Last, l.LastSent} {
		if sync != nil {
			at(&sync.Time)
		}
	}
	if l.Failure != nil {
		l.Failure = new(*l.Failure)
		at(&l.Failure.Since)
	}
	for i := range l.Repairs {
		at(&l.Repairs[i].Time)
	}
	copied(&l.OldestChange)
	copied(&l.LeaseRenewed)
	copied(&l.LeaseEnds)
}

// ago returns the time from then to now.
func ago(now, then time.Time) string {
	if then.IsZero() {
		return "never"
	}
	return short(now.Sub(then)) + " ago"
}

// short rounds a duration for a person.
func short(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < 0:
		return "0s"
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d < day:
		return d.Round(time.Second).String()
	}
	return fmt.Sprintf("%dd%s", d/day, (d % day).Round(time.Hour))
}
