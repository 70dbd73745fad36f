package model

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/balance"
)

// An Annotation is an annotation that Build reads.
type Annotation struct {
	Name string
	// Slice is set for annotations of EndpointSlices. All other annotations are annotations of Services.
	Slice bool
	// List is set if the value is a list with commas.
	List bool
	// Alias, if not empty, is the annotation of the program for the same purpose. It takes precedence.
	Alias string
	// Values are the valid values, and Meaning is their effect, in Markdown. Page is the page in docs with the details.
	Values, Meaning, Page string
}

// prefix is the prefix of the program's own annotations.
const prefix = "kube-nftproxy.io/"

// The names of annotations. Each one has a row in [Annotations].
const (
	annotationAlgorithm         = prefix + "lb-algorithm"
	annotationTableSize         = prefix + "lb-table-size"
	annotationSlowStart         = prefix + "slow-start"
	annotationMaximum           = prefix + "max-connections"
	annotationAtMaximum         = prefix + "at-max-connections"
	annotationScaleToZero       = prefix + "scale-to-zero"
	annotationTerminate         = prefix + "terminate-connections"
	annotationRefuseUnused      = prefix + "refuse-unused-ports"
	annotationAnswerPing        = prefix + "answer-ping"
	annotationPortRanges        = prefix + "port-ranges"
	annotationNodePortSources   = prefix + "node-port-source-ranges"
	annotationExternalIPSources = prefix + "external-ip-source-ranges"
	annotationDeniedSources     = prefix + "denied-source-ranges"
	annotationWeights           = prefix + "weights"

	// Annotations of Cilium, Calico and Cozystack.
	annotationCiliumAlgorithm    = "service.cilium.io/lb-algorithm"
	annotationCiliumScaleToZero  = "service.cilium.io/scale-to-zero"
	annotationCiliumSourcePolicy = "service.cilium.io/src-ranges-policy"
	annotationCiliumWeight       = "service.cilium.io/weight"
	annotationCalicoStrategy     = "lb.projectcalico.org/external-traffic-strategy"
	annotationWholeIP            = "networking.cozystack.io/wholeIP"
)

// Annotations are all annotations that Build reads. pkg/watch stores these, and a few unknown names with prefix, which become problems.
// docs/annotations.md has the table.
var Annotations = []Annotation{
	{Name: annotationAlgorithm, Values: "`random`, `source-hash`, `maglev`", Meaning: "the method by which a connection gets its endpoint", Page: "algorithms.md"},
	{Name: annotationCiliumAlgorithm, Alias: annotationAlgorithm, Values: "`random`, `maglev`", Meaning: "the same", Page: "algorithms.md"},
	{Name: annotationCalicoStrategy, Alias: annotationAlgorithm, Values: "`maglev`", Meaning: "the same", Page: "algorithms.md"},
	{Name: annotationTableSize, Values: "a prime of a fixed list, such as `1021`", Meaning: "the number of slots of `source-hash` and `maglev`", Page: "algorithms.md"},
	{Name: annotationSlowStart, Values: "`1` to `3600`", Meaning: "the seconds until a new endpoint has its full weight", Page: "algorithms.md"},
	{Name: annotationMaximum, Values: "`1` to `1000`", Meaning: "the maximum of connections of each endpoint", Page: "algorithms.md"},
	{Name: annotationAtMaximum, Values: "`refuse`, `queue`", Meaning: "the treatment of a new connection while all endpoints are full", Page: "algorithms.md"},
	{Name: annotationWeights, Slice: true, List: true, Values: "such as `10.0.0.1=3,10.0.0.2=0`", Meaning: "the weights of individual endpoints", Page: "algorithms.md"},
	{Name: annotationCiliumWeight, Slice: true, Values: "`0` to `65535`", Meaning: "the weight of all endpoints without an individual weight", Page: "algorithms.md"},
	{Name: annotationScaleToZero, Values: boolean, Meaning: "connections wait while the Service has no endpoint", Page: "scale-to-zero.md"},
	{Name: annotationCiliumScaleToZero, Alias: annotationScaleToZero, Values: boolean, Meaning: "the same", Page: "scale-to-zero.md"},
	{Name: annotationTerminate, Values: "`gone`, `off`", Meaning: "TCP connections to endpoints that left all slices get a reset", Page: "stale-connections.md"},
	{Name: annotationRefuseUnused, Values: boolean, Meaning: "load-balancer and external IPs refuse unused ports", Page: "vips.md"},
	{Name: annotationAnswerPing, Values: "`always`, `ready`, `never`", Meaning: "the addresses answer echo requests", Page: "vips.md"},
	{Name: annotationPortRanges, List: true, Values: "such as `udp/10000-20000,tcp/8000`, or `all`", Meaning: "additional ports of the addresses", Page: "port-ranges.md"},
	{Name: annotationWholeIP, Alias: annotationPortRanges, Values: "`true`", Meaning: "all ports of the addresses", Page: "port-ranges.md"},
	{Name: annotationNodePortSources, List: true, Values: "CIDRs with commas, or `none`", Meaning: "the sources that may use node ports", Page: "source-ranges.md"},
	{Name: annotationExternalIPSources, List: true, Values: "CIDRs with commas, or `none`", Meaning: "the sources that may use external IPs", Page: "source-ranges.md"},
	{Name: annotationDeniedSources, List: true, Values: "CIDRs with commas", Meaning: "the sources that may use only cluster IPs", Page: "source-ranges.md"},
	{Name: annotationCiliumSourcePolicy, Values: "`allow`, `deny`", Meaning: "with `deny`, `loadBalancerSourceRanges` are denied sources", Page: "source-ranges.md"},
}

// boolean are the values that [builder.boolean] reads.
const boolean = "`true`, `false`"

// AnnotationsOf returns the names of the annotations of EndpointSlices, or of Services.
func AnnotationsOf(slice bool) (names []string) {
	for _, a := range Annotations {
		if a.Slice == slice {
			names = append(names, a.Name)
		}
	}
	return names
}

// firstAnnotation returns the value and the path of the first of the named annotations that the Service has.
func (b *builder) firstAnnotation(names ...string) (text, field string, given bool) {
	for _, name := range names {
		if text, given = b.svc.Annotations[name]; given {
			return text, annotationField(name), true
		}
	}
	return "", "", false
}

// boolean returns the value of the first of the named annotations that the Service has. For an invalid value, it returns false, and adds a problem
// with the consequence.
func (b *builder) boolean(consequence string, names ...string) (value, given bool) {
	text, field, given := b.firstAnnotation(names...)
	if given && text != "true" && text != "false" {
		b.problem(field, quoted(text, `must be "true" or "false"; `+consequence))
	}
	return text == "true", given
}

// unknownAnnotations adds a problem for each annotation with the program's prefix that has no meaning for a Service.
func (b *builder) unknownAnnotations() {
	var unknown []string
	for name := range b.svc.Annotations {
		known := func(a Annotation) bool { return a.Name == name && !a.Slice }
		if strings.HasPrefix(name, prefix) && !slices.ContainsFunc(Annotations, known) {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown)
	for _, name := range unknown {
		b.problem("metadata.annotations", quoted(name, "not an annotation of Services; it has no effect (docs/annotations.md lists all)"))
	}
}

// algorithms are the annotations that name a method, in order of precedence, with the valid names in each of them.
var algorithms = []struct {
	annotation string
	names      []string // nil for all
}{
	{annotationAlgorithm, nil},
	{annotationCiliumAlgorithm, []string{balance.Random, balance.Maglev}},
	{annotationCalicoStrategy, []string{balance.Maglev}},
}

// MostConnections is the largest valid maximum of connections of an endpoint. The kernel's work for a new connection grows with the maximum.
const MostConnections = 1000

// AtMaximum is the treatment of new connections while all endpoints of a Service have their maximum of connections.
type AtMaximum string

// The values of the annotation.
const (
	// Refuse: a TCP reset, or an ICMP error.
	Refuse AtMaximum = "refuse"
	// Queue: no answer, so that the client retries.
	Queue AtMaximum = "queue"
)

// maximum returns the maximum of connections of each endpoint, and the treatment at the maximum. If the maximum is invalid, maximum adds a problem
// and returns 0. If the treatment is invalid, it adds a problem and returns Refuse. With session affinity, it adds a problem and returns no treatment.
func (b *builder) maximum() (uint16, AtMaximum) {
	text, given := b.svc.Annotations[annotationMaximum]
	if !given {
		return 0, ""
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n < 1 || n > MostConnections {
		b.problem(MaximumField, quoted(text, fmt.Sprintf("must be a number from 1 to %d; endpoints have no maximum of connections", MostConnections)))
		return 0, ""
	}
	if b.svc.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		b.problem(MaximumField, quoted(text, "the Service has session affinity, so its endpoints have no maximum of connections; use the algorithm "+balance.SourceHash+" instead of session affinity"))
		return uint16(n), ""
	}
	at := AtMaximum(b.svc.Annotations[annotationAtMaximum])
	switch at {
	case Refuse, Queue:
		return uint16(n), at
	case "":
	default:
		b.problem(annotationField(annotationAtMaximum), quoted(string(at), fmt.Sprintf("must be %s or %s; the Service refuses connections", Refuse, Queue)))
	}
	return uint16(n), Refuse
}

// Paths of annotations.
const (
	inAnnotations          = "metadata.annotations["
	AlgorithmField         = inAnnotations + annotationAlgorithm + "]"
	MaximumField           = inAnnotations + annotationMaximum + "]"
	ScaleToZeroField       = inAnnotations + annotationScaleToZero + "]"
	TerminateField         = inAnnotations + annotationTerminate + "]"
	PortRangesField        = inAnnotations + annotationPortRanges + "]"
	ExternalIPSourcesField = inAnnotations + annotationExternalIPSources + "]"
	NodePortSourcesField   = inAnnotations + annotationNodePortSources + "]"
	DeniedSourcesField     = inAnnotations + annotationDeniedSources + "]"
)

// annotationField returns the path of an annotation.
func annotationField(name string) string { return inAnnotations + name + "]" }

// method returns the algorithm of the Service: from the first annotation of algorithms, or the node's default. If the annotation is invalid, it adds
// a problem and returns the random algorithm.
func (b *builder) method() balance.Method {
	m := b.opts.Method
	for _, a := range algorithms {
		name, given := b.svc.Annotations[a.annotation]
		if !given {
			continue
		}
		var err error
		if m, err = balance.Parse(name); a.names != nil && !slices.Contains(a.names, name) {
			m, err = balance.Method{}, fmt.Errorf("must be %s", strings.Join(a.names, " or "))
		}
		if err != nil {
			b.problem(annotationField(a.annotation), quoted(name, err.Error()+"; endpoints are chosen at random"))
		}
		break
	}
	size, given := b.svc.Annotations[annotationTableSize]
	if !given || m.Key == balance.Chance {
		return m
	}
	n, err := strconv.ParseUint(size, 10, 32)
	if err != nil || !slices.Contains(balance.Sizes[:], uint32(n)) {
		b.problem(annotationField(annotationTableSize), quoted(size, "must be one of "+strings.Trim(fmt.Sprint(balance.Sizes), "[]")+"; the default size for the number of endpoints applies"))
		return m
	}
	m.Size = uint32(n)
	return m
}

// sliceWeights are the weights of the endpoints of one slice.
type sliceWeights struct {
	// others is the weight of all endpoints that are not in own.
	others uint16
	own    map[netip.Addr]uint16
}

func (w *sliceWeights) of(a netip.Addr) uint16 {
	if own, has := w.own[a]; has {
		return own
	}
	return w.others
}

// readWeights returns the weights of a slice. Each invalid weight becomes a problem of the slice, and is ignored.
func (s *Slice) readWeights(l *Limits) sliceWeights {
	invalid := func(field, value, reason string) {
		if !s.problems.full(l.Problems) {
			s.problems.add(l.Problems, s.problemOf(annotationField(field), quoted(value, reason)))
		}
	}
	w := sliceWeights{others: 1}
	if text, given := s.Annotations[annotationCiliumWeight]; given {
		if n, ok := weightOf(text); ok {
			w.others = n
		} else {
			invalid(annotationCiliumWeight, text, notWeight)
		}
	}
	list, given := s.Annotations[annotationWeights]
	if !given {
		return w
	}
	items, err := l.itemsOf(list)
	if err != nil {
		invalid(annotationWeights, list, err.Error()+"; its weights are ignored")
		return w
	}
	w.own = map[netip.Addr]uint16{}
	for _, item := range items {
		left, right, _ := strings.Cut(strings.TrimSpace(item), "=")
		addr, err := parseRaw(left)
		n, ok := weightOf(right)
		switch {
		case err != nil:
			invalid(annotationWeights, item, err.Error())
		case !ok:
			invalid(annotationWeights, item, notWeight)
		default:
			w.own[addr.Unmap()] = n
		}
	}
	return w
}

func (s *Slice) problemOf(field, reason string) Problem {
	return Problem{Kind: "EndpointSlice", Name: s.Name, Field: field, Reason: reason}
}

const notWeight = "not a weight from 0 to 65535"

func weightOf(text string) (uint16, bool) {
	n, err := strconv.ParseUint(text, 10, 16)
	return uint16(n), err == nil
}

// quarantine returns the traits of an endpoint of weight 0: it gets no new connections, and may continue existing flows.
func (t traits) quarantine() traits { return t &^ (ready | terminating) }
