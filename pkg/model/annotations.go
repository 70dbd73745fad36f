package model

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/balance"
)

// An Annotation has everything that is particular to an annotation, apart from the behaviour that its value selects.
type Annotation struct {
	Name string
	// Alias, if not empty, is the annotation of the program for the same purpose. It takes precedence.
	Alias string
	// List is set if the value is a list with commas.
	List bool
	// Value has the values, and sets the fields that the annotation controls.
	Value
	// Meaning is the effect in Markdown, and Page is the page in docs with the details.
	Meaning, Page string
	// Else is the effect of an invalid value, for the problem.
	Else string
	// inUse reports whether the annotation has an effect, so that its value is read; nil for always.
	inUse func(*builder) bool
}

// OfSlices reports whether the annotation is one of EndpointSlices. All others are annotations of Services.
func (a *Annotation) OfSlices() bool { return a.weigh != nil }

// prefix is the prefix of the program's own annotations.
const prefix = "kube-nftproxy.io/"

// The names of annotations that are not only in their row.
const (
	annotationAlgorithm         = prefix + "lb-algorithm"
	annotationMaximum           = prefix + "max-connections"
	annotationScaleToZero       = prefix + "scale-to-zero"
	annotationTerminate         = prefix + "terminate-connections"
	annotationSpread            = prefix + "spread-connections"
	annotationTimeouts          = prefix + "conntrack-timeouts"
	annotationPortRanges        = prefix + "port-ranges"
	annotationNodePortSources   = prefix + "node-port-source-ranges"
	annotationExternalIPSources = prefix + "external-ip-source-ranges"
	annotationDeniedSources     = prefix + "denied-source-ranges"
	annotationRedirect          = prefix + "local-redirect"
	annotationForwarding        = prefix + "forwarding-mode"
	annotationNodeSelector      = "service.cilium.io/node-selector"
	annotationNode              = "service.cilium.io/node"
	annotationSourcePolicy      = "service.cilium.io/src-ranges-policy"
	annotationWholeIP           = "networking.cozystack.io/wholeIP"
)

// Annotations are all annotations that Build reads, in this order: a value may depend on values of earlier rows. An
// alias follows the annotation that takes precedence. pkg/watch stores these annotations, and a few unknown names with
// prefix, which become problems. docs/annotations.md has the table.
var Annotations = []Annotation{
	{
		Name: annotationAlgorithm, Meaning: "the method by which a connection gets its endpoint", Page: "algorithms.md",
		Value: Value{
			Values:  "`random`, `source-hash`, `maglev`",
			Samples: []string{"random", "source-hash", "source-hash/28,64", "maglev"},
			Wrong:   []string{"", "least-conn", "maglev/24"},
			set:     (*builder).setAlgorithm,
		},
		Else: "endpoints are chosen at random",
	},
	{
		Name: "service.cilium.io/lb-algorithm", Alias: annotationAlgorithm,
		Value:   oneOf((*builder).setNamedAlgorithm, balance.Random, balance.Maglev),
		Meaning: "the same", Page: "algorithms.md", Else: "endpoints are chosen at random",
	},
	{
		Name: "lb.projectcalico.org/external-traffic-strategy", Alias: annotationAlgorithm,
		Value:   oneOf((*builder).setNamedAlgorithm, balance.Maglev),
		Meaning: "the same", Page: "algorithms.md", Else: "endpoints are chosen at random",
	},
	{
		Name: annotationForwarding, Page: "dsr.md",
		Meaning: "with `dsr`, replies of load-balancer IPs, external IPs and node ports leave from the endpoint's node",
		Value:   oneOf((*builder).setForwarding, forwardDirect, "nat"), Else: usesNAT,
	},
	{
		Name: "service.cilium.io/forwarding-mode", Alias: annotationForwarding, Meaning: "the same", Page: "dsr.md",
		Value: oneOf((*builder).setForwarding, forwardDirect, "snat"), Else: usesNAT,
	},
	{
		Name: "service.antrea.io/load-balancer-mode", Alias: annotationForwarding, Meaning: "the same", Page: "dsr.md",
		Value: oneOf((*builder).setForwarding, forwardDirect, "nat"), Else: usesNAT,
	},
	{
		Name: prefix + "lb-table-size", Meaning: "the number of slots of `source-hash` and `maglev`", Page: "algorithms.md",
		Value: Value{
			Values:  "a prime of a fixed list, such as `1021`",
			Samples: []string{"251", "1021"}, Wrong: []string{"", "1000", "-251"},
			set: (*builder).setTableSize,
		},
		Else:  "the default size for the number of endpoints applies",
		inUse: func(b *builder) bool { return b.method.Key != balance.Chance || b.direct },
	},
	{
		Name: prefix + "slow-start", Page: "algorithms.md",
		Meaning: "the seconds until a new endpoint has its full weight",
		Value: numbers(1, 3600, " of seconds", func(b *builder, seconds uint16) {
			b.slow = time.Duration(seconds) * time.Second
		}, "90", "900", "3600"),
		Else: "endpoints start with their full weight",
	},
	{
		Name: annotationMaximum, Meaning: "the connection limit of each endpoint", Page: "algorithms.md",
		Value: numbers(1, MostConnections, "", func(b *builder, n uint16) { b.maximum = n }, "1", "2", "1000"),
		Else:  "endpoints have no connection limit",
	},
	{
		Name: prefix + "at-max-connections", Page: "algorithms.md",
		Meaning: "the treatment of a new connection while all endpoints are full",
		Value: oneOf(func(b *builder, name string) {
			b.atMaximum = cmp.Or(AtMaximum(name), Refuse)
		}, string(Refuse), string(Queue)),
		Else:  "the Service refuses connections",
		inUse: (*builder).limited,
	},
	{
		Name: prefix + "weights", List: true, Meaning: "the weights of individual endpoints", Page: "algorithms.md",
		Value: Value{
			Values:  "such as `10.0.0.1=3,10.0.0.2=0`",
			Samples: []string{"10.0.0.1=3,10.0.0.2=0", "fd00::1=65535"},
			Wrong:   []string{"", "10.0.0.1", "10.0.0.1=-1", "10.0.0.1=65536", "pod=1"},
			weigh:   (*sliceWeights).setOwn,
		},
	},
	{
		Name: "service.cilium.io/weight", Page: "algorithms.md",
		Meaning: "the weight of all endpoints without an individual weight",
		Value: Value{
			Values: "`0` to `65535`", Samples: []string{"0", "1", "3"}, Wrong: []string{"", "-1", "65536", "heavy"},
			weigh: (*sliceWeights).setOthers,
		},
	},
	{
		Name: annotationScaleToZero, Meaning: "connections wait while the Service has no endpoint", Page: "scale-to-zero.md",
		Value: boolean(scaleToZero), Else: "the Service refuses connections while it has no endpoint",
	},
	{
		Name: "service.cilium.io/scale-to-zero", Alias: annotationScaleToZero, Meaning: "the same", Page: "scale-to-zero.md",
		Value: boolean(scaleToZero), Else: "the Service refuses connections while it has no endpoint",
	},
	{
		Name: annotationTerminate, Page: "stale-connections.md",
		Meaning: "TCP connections to endpoints that left all slices get a reset",
		Value: oneOf(func(b *builder, name string) {
			b.out.TerminateGone = Termination(name) == TerminateGone
		}, string(TerminateGone), string(TerminateOff)),
		Else: "established connections stay",
	},
	{
		Name: annotationSpread, Page: "stale-connections.md",
		Meaning: "the seconds without a segment after which a TCP connection may end, to use more endpoints",
		Value: numbers(leastSilence, 3600, " of seconds", func(b *builder, seconds uint16) {
			b.out.SpreadSilent = time.Duration(seconds) * time.Second
		}, "30", "600", "3600"),
		Else: connectionsStay,
	},
	{
		Name: annotationTimeouts, Page: "stale-connections.md",
		Meaning: "the timeouts of new UDP flows and TCP connections in connection tracking",
		Value: Value{
			Values:  "such as `udp=5s/30s,tcp=1h`",
			Samples: []string{"udp=5s/30s,tcp=1h", "udp=5s/5s", "tcp=72h", " tcp=5m , udp=1m/1h"},
			Wrong: []string{
				"", "udp=5s", "udp=30s/5s", "udp=7s/30s", "tcp=1h,tcp=2h", "sctp=1h", "tcp=0s", "udp=5s/30s,",
			},
			set: (*builder).setTimeouts,
		},
		Else: "the timeouts of the node apply",
	},
	{
		Name: "service.cilium.io/type", Page: "vips.md",
		Meaning: "the only kind of addresses that is served, beside external IPs",
		Value: oneOf(func(b *builder, name string) {
			b.exposed = corev1.ServiceType(name)
		}, string(corev1.ServiceTypeLoadBalancer), string(corev1.ServiceTypeNodePort),
			string(corev1.ServiceTypeClusterIP)),
		Else: "all addresses are served",
	},
	{
		Name: annotationNodeSelector, Page: "vips.md",
		Meaning: "the nodes that serve the Service, by their labels",
		Value: Value{
			Values: "a label selector",
			Samples: []string{
				"topology.kubernetes.io/zone in (zone-a, zone-b)", "topology.kubernetes.io/zone=zone-b",
				"!example.com/none",
			},
			Wrong: []string{"=", "a in b", strings.Repeat("a,", mostSelector), strings.Repeat("a,", mostCommas+1) + "a"},
			set:   (*builder).setNodeSelector,
		},
		Else: "all nodes serve the Service",
	},
	{
		Name: annotationNode, Alias: annotationNodeSelector, Page: "vips.md",
		Meaning: "the same, by the value of the Node's label `service.cilium.io/node`",
		Value:   Value{Values: "the value of the label", Samples: []string{"edge", ""}, set: (*builder).setNode},
	},
	{
		Name: annotationRedirect, Page: "vips.md",
		Meaning: "the Service whose endpoints on this node serve the cluster IPs, while it has any",
		Value: Value{
			Values: "the name of a Service of the namespace", Samples: []string{"kube-dns-cache"},
			Wrong: []string{"", "kube-system/kube-dns-cache", "Cache"},
			set:   (*builder).setRedirect,
		},
		Else: "the Service keeps its own endpoints",
	},
	{
		Name: prefix + "refuse-unused-ports", Meaning: "load-balancer and external IPs refuse unused ports", Page: "vips.md",
		Value: either((*builder).setRefusal),
		Else:  "unused ports of its load-balancer and external IPs are not refused",
		inUse: func(b *builder) bool { return b.opts.UnusedPorts.Any() },
	},
	{
		Name: prefix + "answer-ping", Meaning: "the addresses answer echo requests", Page: "vips.md",
		Value: oneOf((*builder).setPing, string(PingAlways), string(PingReady), "never"),
		Else:  "its addresses do not answer ping",
		inUse: func(b *builder) bool { return b.opts.Ping.Answers() },
	},
	{
		Name: annotationPortRanges, List: true, Meaning: "additional ports of the addresses", Page: "port-ranges.md",
		Value: Value{
			Values: "such as `udp/10000-20000,tcp/8000`, or `all`",
			Samples: []string{
				"all", "tcp/8080,udp/8080", "tcp/8000-9100", "udp/8080-9090,tcp/9090", " TCP/50-100 , udp/1-9000",
				"tcp/443-8080,udp/443-8080", "udp/8000-8500,tcp/8080-8081", "tcp/8000-8079,tcp/8080,udp/9000-9100",
				"tcp/1-65535,udp/9090,sctp/36412-36500", "udp/1-65535",
			},
			Wrong: []string{"", "tcp/9-8", "quic/443", "tcp/0", "udp/1-65536", "8000"},
			set:   (*builder).setPortRanges,
		},
		Else: "only the ports of the Service are served",
	},
	{
		Name: annotationWholeIP, Alias: annotationPortRanges, Meaning: "all ports of the addresses", Page: "port-ranges.md",
		// Cozystack defines the other values.
		Value: Value{Values: "`true`", Samples: []string{"true", "false"}, set: (*builder).setWholeIP},
		Else:  "only the ports of the Service are served",
	},
	{
		Name: annotationNodePortSources, List: true, Page: "source-ranges.md",
		Meaning: "the sources that may use node ports",
		Value:   sourcesFor(NodePort, NodePortSourcesField),
	},
	{
		Name: annotationExternalIPSources, List: true, Page: "source-ranges.md",
		Meaning: "the sources that may use external IPs",
		Value:   sourcesFor(ExternalIP, ExternalIPSourcesField),
	},
	{
		Name: annotationDeniedSources, List: true, Page: "source-ranges.md",
		Meaning: "the sources that may use only cluster IPs",
		Value: Value{
			Values: "CIDRs with commas", Samples: []string{"192.0.2.0/25, 2001:db8::/64", "10.0.0.0/8"},
			Wrong: []string{"10.0.0.0/33", "none", "192.0.2.1/32,bad"},
			set:   (*builder).setDenied,
		},
	},
	{
		Name: annotationSourcePolicy, Page: "source-ranges.md",
		Meaning: "with `deny`, `loadBalancerSourceRanges` are denied sources",
		Value: Value{
			Values: "`allow`, `deny`", Samples: []string{ciliumAllow, ciliumDeny}, Wrong: []string{"", "other"},
			set: (*builder).setSourcePolicy,
		},
	},
}

// RedirectAnnotation names the Service whose EndpointSlices are [Objects.Redirect].
const RedirectAnnotation = annotationRedirect

// MostRedirects is the largest number of Services whose local redirects to the same Service have an effect, because a
// change of its EndpointSlices plans all of them. The oldest Services count.
const MostRedirects = 16

// A selector of nodes has at most mostSelector bytes and mostCommas commas. It is read again for each change of the
// Service, and the time grows with the number of labels and values.
const mostSelector, mostCommas = 1024, 32

func (b *builder) setNodeSelector(text string) error {
	if len(text) > mostSelector {
		return fmt.Errorf("has more than %d bytes", mostSelector)
	}
	if strings.Count(text, ",") > mostCommas {
		return fmt.Errorf("has more than %d commas", mostCommas)
	}
	selector, err := labels.Parse(text)
	if err != nil {
		return errors.New("not a label selector")
	}
	b.selectsNodes, b.elsewhere = true, !selector.Matches(b.node.labels())
	return nil
}

// setNode compares the value with the label of the node that has the name of the annotation.
func (b *builder) setNode(text string) error {
	value, has := b.node.labels()[annotationNode]
	b.selectsNodes, b.elsewhere = true, !has || value != text
	return nil
}

// setRedirect admits only cluster IPs, because all frontends of a service port have the same endpoints.
func (b *builder) setRedirect(name string) error {
	switch {
	case len(validation.IsDNS1123Label(name)) > 0:
		return errors.New("not the name of a Service")
	case hasExternal(b.svc) || len(b.svc.Status.LoadBalancer.Ingress) > 0:
		return errors.New("must be on a Service that has only cluster IPs")
	case b.excess:
		return fmt.Errorf("names the same Service as %d older Services, the largest number", MostRedirects)
	}
	b.redirect = name
	return nil
}

func scaleToZero(s *Switches) *bool { return &s.ScaleToZero }

// AnnotationsOf returns the names of the annotations of EndpointSlices, or of Services.
func AnnotationsOf(endpointSlices bool) (names []string) {
	for i := range Annotations {
		if a := &Annotations[i]; a.OfSlices() == endpointSlices {
			names = append(names, a.Name)
		}
	}
	return names
}

// readAnnotations sets the fields that annotations of the Service control. Each invalid value becomes a problem, and
// each annotation with the program's prefix that has no meaning for a Service.
func (b *builder) readAnnotations() {
	read := "" // the purpose of the last annotation
	known := map[string]bool{}
	for i := range Annotations {
		a := &Annotations[i]
		text, given := b.svc.Annotations[a.Name]
		if !given || a.OfSlices() {
			continue
		}
		known[a.Name] = true
		purpose := cmp.Or(a.Alias, a.Name)
		if purpose == read {
			continue
		}
		if read = purpose; a.inUse != nil && !a.inUse(b) {
			continue
		}
		if err := a.set(b, text); err != nil {
			b.problem(annotationField(a.Name), quoted(text, err.Error()+"; "+a.Else))
		}
	}
	b.checkSpread()
	if b.maximum > 0 && !b.limited() {
		b.problem(MaximumField, quoted(b.svc.Annotations[annotationMaximum], "the Service has session affinity, so its "+
			"endpoints have no connection limit; use the algorithm "+balance.SourceHash+" instead of session affinity"))
	}
	for _, name := range slices.Sorted(maps.Keys(b.svc.Annotations)) {
		if strings.HasPrefix(name, prefix) && !known[name] {
			b.problem("metadata.annotations",
				quoted(name, "not an annotation of Services; it has no effect (docs/annotations.md lists all)"))
		}
	}
}

// MostConnections is the largest valid connection limit of an endpoint. The kernel's work for a new connection grows
// with the limit.
const MostConnections = 1000

// AtMaximum is the treatment of new connections while all endpoints of a Service are at their connection limit.
type AtMaximum string

// The values of the annotation.
const (
	// Refuse: a TCP reset, or an ICMP error.
	Refuse AtMaximum = "refuse"
	// Queue: no answer, so that the client retries.
	Queue AtMaximum = "queue"
)

// limited reports whether the Service has a connection limit that applies.
func (b *builder) limited() bool {
	return b.maximum > 0 && b.svc.Spec.SessionAffinity != corev1.ServiceAffinityClientIP
}

// Paths of annotations.
const (
	inAnnotations          = "metadata.annotations["
	AlgorithmField         = inAnnotations + annotationAlgorithm + "]"
	MaximumField           = inAnnotations + annotationMaximum + "]"
	ScaleToZeroField       = inAnnotations + annotationScaleToZero + "]"
	TerminateField         = inAnnotations + annotationTerminate + "]"
	SpreadField            = inAnnotations + annotationSpread + "]"
	TimeoutsField          = inAnnotations + annotationTimeouts + "]"
	PortRangesField        = inAnnotations + annotationPortRanges + "]"
	ExternalIPSourcesField = inAnnotations + annotationExternalIPSources + "]"
	NodePortSourcesField   = inAnnotations + annotationNodePortSources + "]"
	ForwardingField        = inAnnotations + annotationForwarding + "]"
	DeniedSourcesField     = inAnnotations + annotationDeniedSources + "]"
)

// annotationField returns the path of an annotation.
func annotationField(name string) string { return inAnnotations + name + "]" }

func (b *builder) setAlgorithm(name string) (err error) {
	b.method, err = balance.Parse(name)
	return err
}

func (b *builder) setNamedAlgorithm(name string) { b.method, _ = balance.Parse(name) }

func (b *builder) setTableSize(text string) error {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || !slices.Contains(balance.Sizes[:], uint32(n)) {
		return errors.New("must be one of " + strings.Trim(fmt.Sprint(balance.Sizes), "[]"))
	}
	b.method.Size = uint32(n)
	return nil
}

// sliceWeights are the weights of the endpoints of one slice.
type sliceWeights struct {
	// others is the weight of all endpoints that are not in own.
	others uint16
	own    map[netip.Addr]uint16
}

// readWeights reads the weights of a slice. Each invalid weight becomes a problem of the slice, and is ignored.
func (s *Slice) readWeights(w *sliceWeights, l *Limits) {
	s.problems = &problems{kind: "EndpointSlice", name: s.Name, most: l.Problems}
	for i := range Annotations {
		a := &Annotations[i]
		if text, given := s.Annotations[a.Name]; given && a.OfSlices() {
			a.weigh(w, l, text, func(value, reason string) {
				if !s.problems.full() {
					s.problems.problem(annotationField(a.Name), quoted(value, reason))
				}
			})
		}
	}
}

func (w *sliceWeights) setOthers(_ *Limits, text string, invalid func(value, reason string)) {
	if n, ok := weightOf(text); ok {
		w.others = n
	} else {
		invalid(text, notWeight)
	}
}

func (w *sliceWeights) setOwn(l *Limits, text string, invalid func(value, reason string)) {
	items, err := l.itemsOf(text)
	if err != nil {
		invalid(text, err.Error()+"; its weights are ignored")
		return
	}
	w.own = map[netip.Addr]uint16{}
	for _, item := range items {
		left, right, _ := strings.Cut(strings.TrimSpace(item), "=")
		addr, err := parseRaw(left)
		n, ok := weightOf(right)
		switch {
		case err != nil:
			invalid(item, err.Error())
		case !ok:
			invalid(item, notWeight)
		default:
			w.own[addr.Unmap()] = n
		}
	}
}

const notWeight = "not a weight from 0 to 65535"

func weightOf(text string) (uint16, bool) {
	n, err := strconv.ParseUint(text, 10, 16)
	return uint16(n), err == nil
}
