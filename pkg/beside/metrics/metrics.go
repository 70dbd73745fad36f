package metrics

import (
	"runtime"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// Metrics holds all metrics of the program. Its methods are safe for concurrent use.
type Metrics struct {
	families []inet.Family
	family   label

	syncDuration, fullSyncDuration, partialSyncDuration *prometheus.HistogramVec
	programmingDuration                                 *prometheus.HistogramVec
	lastSync, lastQueued                                *prometheus.GaugeVec
	endpointsPending, servicesPending                   prometheus.Gauge
	endpointsTotal, servicesTotal                       prometheus.Counter
	noLocalEndpoints                                    *prometheus.GaugeVec
	syncFailures, cleanupFailures                       *prometheus.CounterVec

	conntrackDuration *prometheus.HistogramVec
	conntrackDeleted  *prometheus.CounterVec

	// answers are those of the health port by path.
	answers map[string]*prometheus.CounterVec

	elements, capacity, classChains          *prometheus.GaugeVec
	batches                                  *prometheus.CounterVec
	batchBytes, batchElements, batchDuration prometheus.Observer
	adopted                                  prometheus.Counter
	rejected                                 *prometheus.GaugeVec
	conflicts                                prometheus.Gauge
	leftovers                                *prometheus.GaugeVec
	problems                                 *prometheus.CounterVec
	problemsSuppressed                       *prometheus.CounterVec
	checkPortsFailed                         prometheus.Gauge
	nodePortCollisions                       *prometheus.GaugeVec
	nodePortSearches                         *prometheus.CounterVec

	// The metrics of node ports on loopback.
	loopbackListeners                      *prometheus.GaugeVec
	loopbackNotListening, loopbackFailures *prometheus.CounterVec
	loopbackConnections                    prometheus.Gauge

	checks, repairs *prometheus.CounterVec
	drift, standby  prometheus.Gauge
	takeovers       prometheus.Counter
	configOutdated  prometheus.Gauge
	flowPasses      *prometheus.CounterVec
	watchErrors     *prometheus.CounterVec
	fromSnapshot    prometheus.Gauge
	snapshotTime    prometheus.Gauge
}

// Config holds the settings of the metrics.
type Config struct {
	// Families are the served families; none means both.
	Families []inet.Family
	// NativeHistograms adds native buckets to each histogram (kube-proxy: feature gate NativeHistograms).
	NativeHistograms bool
	// Version is the program's version.
	Version string
	// Loopback says that node ports are served on loopback: otherwise there are no metrics of it, as in kube-proxy.
	Loopback bool
}

// New registers all metrics of the proxy in reg. It panics if one is registered already.
func New(reg prometheus.Registerer, c Config) *Metrics {
	if len(c.Families) == 0 {
		c.Families = inet.Families[:]
	}
	m := &Metrics{families: c.Families, family: by("ip_family")}
	for _, f := range c.Families {
		m.family.known = append(m.family.known, f.String())
	}
	r := registry{reg, c.NativeHistograms}
	r.gauges("kubenftproxy_build_info", "Always 1, with the version of the program and of Go as labels.",
		by("version"), by("goversion")).
		WithLabelValues(c.Version, runtime.Version()).Set(1)
	m.registerSync(r)
	m.registerChanges(r)
	m.registerConntrack(r)
	m.registerHealth(r)
	m.registerBatches(r)
	m.registerState(r)
	m.registerTrust(r)
	m.registerLoopback(r, c.Loopback)
	return m
}

// registerSync registers kube-proxy's metrics of syncs.
func (m *Metrics) registerSync(r registry) {
	m.syncDuration = r.histograms("kubeproxy_sync_proxy_rules_duration_seconds",
		"Duration of one sync, full or partial, successful or failed.", durationBuckets(), m.family)
	m.fullSyncDuration = r.histograms("kubeproxy_sync_full_proxy_rules_duration_seconds",
		"Duration of one full sync, which rewrites the whole table.", durationBuckets(), m.family)
	m.partialSyncDuration = r.histograms("kubeproxy_sync_partial_proxy_rules_duration_seconds",
		"Duration of one partial sync, which writes only changes.", durationBuckets(), m.family)
	m.programmingDuration = r.histograms("kubeproxy_network_programming_duration_seconds",
		"Time from the change of an EndpointSlice, by its annotation "+
			"endpoints.kubernetes.io/last-change-trigger-time, until its rules are in the kernel.",
		programmingBuckets(), m.family)
	m.lastSync = r.gauges("kubeproxy_sync_proxy_rules_last_timestamp_seconds",
		"Unix time of the end of the last successful sync.", by("ip_family"))
	m.lastQueued = r.gauges("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
		"Unix time of the last request for a sync.", by("ip_family"))
	m.syncFailures = r.counters("kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
		"Failed syncs. The previous rules stay in force.", m.family)
	m.cleanupFailures = r.counters("kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total",
		"Always 0: a sync deletes unused chains itself. If it fails, "+
			"kubeproxy_sync_proxy_rules_nftables_sync_failures_total counts it.", m.family)
}

// registerChanges registers kube-proxy's metrics of changes and of service ports without local endpoints.
func (m *Metrics) registerChanges(r registry) {
	m.endpointsPending = r.gauge("kubeproxy_sync_proxy_rules_endpoint_changes_pending",
		"Changes of EndpointSlices since the last sync after which no Service waited.")
	m.endpointsTotal = r.counter("kubeproxy_sync_proxy_rules_endpoint_changes_total",
		"Changes of EndpointSlices seen.")
	m.servicesPending = r.gauge("kubeproxy_sync_proxy_rules_service_changes_pending",
		"Changes of Services since the last sync after which no Service waited.")
	m.servicesTotal = r.counter("kubeproxy_sync_proxy_rules_service_changes_total",
		"Changes of Services seen.")
	m.noLocalEndpoints = r.gauges("kubeproxy_sync_proxy_rules_no_local_endpoints_total",
		"Service ports with traffic policy Local that have endpoints, but none on this node.",
		by("traffic_policy", "internal", "external"), m.family)
}

// registerConntrack registers kube-proxy's metrics of deleted flows.
func (m *Metrics) registerConntrack(r registry) {
	m.conntrackDuration = r.histograms("kubeproxy_conntrack_reconciler_sync_duration_seconds",
		"Duration of one search for stale conntrack entries and their deletion.", durationBuckets(), m.family)
	m.conntrackDeleted = r.counters("kubeproxy_conntrack_reconciler_deleted_entries_total",
		"Stale conntrack entries deleted.", m.family)
}

// registerHealth registers kube-proxy's counters of health answers.
func (m *Metrics) registerHealth(r registry) {
	code := by("code", "200", "503")
	m.answers = map[string]*prometheus.CounterVec{
		"/healthz": r.counters("kubeproxy_proxy_healthz_total",
			"Responses of /healthz on the health port, by HTTP status code.", code),
		"/livez": r.counters("kubeproxy_proxy_livez_total",
			"Responses of /livez on the health port, by HTTP status code.", code),
	}
}

// registerBatches registers the program's own metrics of batches.
func (m *Metrics) registerBatches(r registry) {
	m.batches = r.counters("kubenftproxy_batches_total",
		"Netlink batches that the kernel accepted, each for both IP families, by kind: full rewrites the whole table, "+
			"partial writes only changes.", by("kind", string(apply.Full), string(apply.Partial)))
	m.batchBytes = r.histogram("kubenftproxy_batch_bytes",
		"Size of one accepted netlink batch.", prometheus.ExponentialBuckets(256, 4, 12))
	m.batchElements = r.histogram("kubenftproxy_batch_elements",
		"Set and map elements that one accepted netlink batch added or deleted.",
		prometheus.ExponentialBuckets(1, 4, 12))
	m.batchDuration = r.histogram("kubenftproxy_batch_duration_seconds",
		"Duration of the system call that sends one accepted netlink batch.",
		durationBuckets())
	m.adopted = r.counter("kubenftproxy_restarts_adopted_total",
		"Starts that adopted the unchanged table of an earlier process.")
}

// registerState registers the program's own metrics of the rules' content.
func (m *Metrics) registerState(r registry) {
	m.elements = r.gauges("kubenftproxy_elements",
		"Elements in a set or map of the table.", m.family, by("set"))
	m.capacity = r.gauges("kubenftproxy_capacity_elements",
		"Maximum number of elements of a set or map of the table. At three quarters of it, the next sync replaces the "+
			"set with a larger one. Sets without a maximum have no series.", m.family, by("set"))
	m.classChains = r.gauges("kubenftproxy_class_chains",
		"Chains of the table that distribute connections over endpoints: up to four for each size of endpoint tables "+
			"in use, and one for each timeout of session affinity.", m.family)
	kind := by("kind", "Service", "EndpointSlice", "ServiceCIDR", "Node", "Pod")
	m.rejected = r.gauges("kubenftproxy_rejected_objects",
		"API objects with a part that is not programmed, because it is invalid or exceeds a limit, by kind.", kind)
	m.conflicts = r.gauge("kubenftproxy_conflicts",
		"Frontends (address, port and protocol) that more than one Service claims. One Service gets it; the others "+
			"get an Event.")
	m.leftovers = r.gauges("kubenftproxy_leftovers",
		"kube-proxy objects on the node, left over or in use, by kind: nftables tables, chains of iptables-nft and "+
			"iptables-legacy, virtual servers, sets and the device of IPVS.",
		by("kind", "nftables", "iptables-nft", "iptables-legacy", "ipvs"))
	m.problems = r.counters("kubenftproxy_problems_total",
		"Problems found in objects, by the kind of the object. A problem that persists counts once. Each problem has "+
			"a log line and an Event, except those that kubenftproxy_problems_suppressed_total counts, too.", kind)
	m.problemsSuppressed = r.counters("kubenftproxy_problems_suppressed_total",
		"Problems of kubenftproxy_problems_total without an Event, by the kind of the object. "+
			"Within ten minutes, 500 problems are in the log, which namespaces share; 24 of one namespace at most. "+
			"Their Events are sent 10 at once, then 10 per minute; the API server may refuse an Event. "+
			"A problem that still exists is reported later, and is still counted here.", kind)
	m.checkPortsFailed = r.gauge("kubenftproxy_health_check_ports_failed",
		"Addresses and ports of Services' healthCheckNodePort on which the program cannot listen.")
	m.registerNodePorts(r)
}

// registerNodePorts registers the program's own metrics of node ports with other uses on this node.
func (m *Metrics) registerNodePorts(r registry) {
	m.nodePortCollisions = r.gauges("kubenftproxy_node_port_collisions",
		"Node ports of Services that conflict with the use of ports on this node, by cause: listener, a local process "+
			"listens on it, and receives no packets, because the Service receives them; ephemeral_range, the kernel "+
			"may give it to any process (net.ipv4.ip_local_port_range without net.ipv4.ip_local_reserved_ports).",
		by("cause", "listener", "ephemeral_range"))
	m.nodePortSearches = r.counters("kubenftproxy_node_port_searches_total",
		"Searches for conflicts of node ports, by result: done or failed. While searches fail, "+
			"kubenftproxy_node_port_collisions keeps the result of the last successful search.", results())
}

// registerTrust registers the program's own metrics of its inputs: drift and repairs of the tables, failed watches of
// the API server.
func (m *Metrics) registerTrust(r registry) {
	reason := by("reason", string(beside.ForeignChange), string(beside.Period), string(beside.FailedSync))
	m.checks = r.counters("kubenftproxy_checks_total",
		"Comparisons of the kernel's tables with the plan, by reason: foreign_change, another program changed the "+
			"ruleset; period, nothing changed for the sync period; failed_sync, the last sync failed.", reason)
	m.repairs = r.counters("kubenftproxy_repairs_total",
		"Full syncs after a comparison found a difference, by the reason of the comparison. Except for failed_sync, "+
			"another program changed or deleted the tables of kube-nftproxy.", reason)
	m.drift = r.gauge("kubenftproxy_drift",
		"1 if the last sync failed and the rules may be out of date, else 0.")
	m.standby = r.gauge("kubenftproxy_standing_by",
		"1 if another instance of the program serves this node and this instance waits, else 0.")
	m.fromSnapshot = r.gauge("kubenftproxy_serving_snapshot",
		"1 if the program serves the Services of a snapshot that the API server has not confirmed, else 0.")
	m.snapshotTime = r.gauge("kubenftproxy_snapshot_timestamp_seconds",
		"Time of the last snapshot that this process has written, in seconds since 1970; 0 if it has written none.")
	m.takeovers = r.counter("kubenftproxy_takeovers_total",
		"Takeovers by this instance from an instance that had not renewed the lease of the tables for 30 seconds.")
	m.configOutdated = r.gauge("kubenftproxy_config_outdated",
		"1 if the configuration file differs from the configuration in use, else 0. A restart of the program applies "+
			"the file.")
	m.flowPasses = r.counters("kubenftproxy_conntrack_passes_total",
		"Searches for stale conntrack entries, by result: done or failed. A failed search is retried.", m.family,
		results())
	m.watchErrors = r.counters("kubenftproxy_watch_errors_total",
		"Failed list and watch requests to the API server, by resource. The program sees no changes until a request "+
			"succeeds.", by("resource", "services", "endpointslices", "servicecidrs", "nodes", "pods"))
}

// FlowsDeleted records one search for stale conntrack entries of a family: its duration and the number of deleted
// entries.
func (m *Metrics) FlowsDeleted(f inet.Family, took time.Duration, deleted int) {
	m.conntrackDuration.WithLabelValues(f.String()).Observe(took.Seconds())
	m.conntrackDeleted.WithLabelValues(f.String()).Add(float64(deleted))
}

// FlowsSearched records the end of a search for stale conntrack entries of a family.
func (m *Metrics) FlowsSearched(f inet.Family, err error) {
	m.flowPasses.WithLabelValues(f.String(), resultOf(err)).Inc()
}

// ConfigOutdated sets whether the configuration file differs from the configuration in use.
func (m *Metrics) ConfigOutdated(outdated bool) {
	m.configOutdated.Set(number(outdated))
}

// ServingSnapshot sets whether the program serves a snapshot that the API server has not confirmed.
func (m *Metrics) ServingSnapshot(on bool) {
	m.fromSnapshot.Set(number(on))
}

// SnapshotSaved sets the time of the last snapshot.
func (m *Metrics) SnapshotSaved(at time.Time) { m.snapshotTime.Set(float64(at.Unix())) }

// WatchFailed counts a failure to list or watch objects of the API server.
func (m *Metrics) WatchFailed(resource string) {
	m.watchErrors.WithLabelValues(resource).Inc()
}

// HealthAnswered counts an answer to /healthz or /livez on the health port with this HTTP status code.
func (m *Metrics) HealthAnswered(path string, code int) {
	m.answers[path].WithLabelValues(strconv.Itoa(code)).Inc()
}

// Leftovers sets the number of kube-proxy's objects on the node, by kind.
func (m *Metrics) Leftovers(kind string, n int) {
	m.leftovers.WithLabelValues(kind).Set(float64(n))
}

// Problem counts a problem by the kind of its object.
func (m *Metrics) Problem(kind string) {
	m.problems.WithLabelValues(kind).Inc()
}

// ProblemSuppressed counts a problem that was not reported because of a limit, by the kind of its object.
func (m *Metrics) ProblemSuppressed(kind string) {
	m.problemsSuppressed.WithLabelValues(kind).Inc()
}

// HealthCheckPortsFailed sets the number of addresses and health check node ports that cannot be opened.
func (m *Metrics) HealthCheckPortsFailed(n int) {
	m.checkPortsFailed.Set(float64(n))
}

// NodePortCollisions sets the number of node ports that collide with other uses on this node, by cause.
func (m *Metrics) NodePortCollisions(cause string, n int) {
	m.nodePortCollisions.WithLabelValues(cause).Set(float64(n))
}

// NodePortsSearched records the end of a search for collisions of node ports.
func (m *Metrics) NodePortsSearched(err error) {
	m.nodePortSearches.WithLabelValues(resultOf(err)).Inc()
}
