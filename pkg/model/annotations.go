package model

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/balance"
)

// The annotations that Build reads. pkg/watch stores only these.
var (
	ServiceAnnotations = []string{algorithm, tableSize, slowStart, maximum, atMaximum, ciliumAlgorithm, calicoStrategy,
		scaleToZero, ciliumScaleToZero, terminate,
		refuseUnused, wholeIP, answerPing, portRanges,
		nodePortSources, externalIPSources, deniedSources, ciliumSourcePolicy}
	SliceAnnotations = []string{weights, ciliumWeight}
)

const (
	// algorithm has the name of a balance.Method, tableSize its number of slots.
	algorithm = "kube-nftproxy.io/lb-algorithm"
	tableSize = "kube-nftproxy.io/lb-table-size"
	// slowStart has the seconds from the lowest share of a new endpoint to its full one.
	slowStart = "kube-nftproxy.io/slow-start"
	// maximum has the maximum of connections of each endpoint, atMaximum an AtMaximum.
	maximum   = "kube-nftproxy.io/max-connections"
	atMaximum = "kube-nftproxy.io/at-max-connections"
	// scaleToZero is "true" if connections are held while the Service has no endpoint.
	scaleToZero = "kube-nftproxy.io/scale-to-zero"
	// terminate has a Termination.
	terminate = "kube-nftproxy.io/terminate-connections"
	// weights has the weights of single endpoints of a slice, such as "10.0.0.1=3,10.0.0.2=0".
	weights = "kube-nftproxy.io/weights"

	// Annotations of Cilium and Calico. ciliumWeight is the weight of all endpoints of a slice.
	ciliumAlgorithm   = "service.cilium.io/lb-algorithm"
	ciliumWeight      = "service.cilium.io/weight"
	ciliumScaleToZero = "service.cilium.io/scale-to-zero"
	calicoStrategy    = "lb.projectcalico.org/external-traffic-strategy"
)

// algorithms are the annotations that name a method, in order of precedence, with the names that each of them may have.
var algorithms = []struct {
	annotation string
	names      []string // nil for all
}{
	{algorithm, nil},
	{ciliumAlgorithm, []string{balance.Random, balance.Maglev}},
	{calicoStrategy, []string{balance.Maglev}},
}

// MostConnections is the greatest maximum of connections of an endpoint. The kernel's work for a new connection grows with the maximum.
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

// MaximumField is the path of the annotation with the maximum of connections.
const MaximumField = "metadata.annotations[" + maximum + "]"

// maximum returns the maximum of connections of each endpoint, and the treatment at the maximum. If the maximum is invalid, maximum adds a problem
// and returns 0. If the treatment is invalid, it adds a problem and returns Refuse.
func (b *builder) maximum() (uint16, AtMaximum) {
	text, given := b.svc.Annotations[maximum]
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
		return 0, ""
	}
	at := AtMaximum(b.svc.Annotations[atMaximum])
	switch at {
	case Refuse, Queue:
		return uint16(n), at
	case "":
	default:
		b.problem(annotation(atMaximum), quoted(string(at), fmt.Sprintf("must be %s or %s; the Service refuses connections", Refuse, Queue)))
	}
	return uint16(n), Refuse
}

// ScaleToZeroField is the path of the annotation of Services that hold connections while they have no endpoint.
const ScaleToZeroField = "metadata.annotations[" + scaleToZero + "]"

// scaleToZero reports whether the Service holds connections while it has no endpoint. If the value is invalid, it adds a problem and returns false.
func (b *builder) scaleToZero() bool {
	for _, a := range []string{scaleToZero, ciliumScaleToZero} {
		text, given := b.svc.Annotations[a]
		if !given {
			continue
		}
		if text != "true" && text != "false" {
			b.problem(annotation(a), quoted(text, `must be "true" or "false"; the Service refuses connections while it has no endpoint`))
		}
		return text == "true"
	}
	return false
}

// AlgorithmField is the path of the annotation with the algorithm.
const AlgorithmField = "metadata.annotations[" + algorithm + "]"

// TerminateField is the path of the annotation with the [Termination].
const TerminateField = "metadata.annotations[" + terminate + "]"

// annotation returns the path of an annotation.
func annotation(key string) string { return "metadata.annotations[" + key + "]" }

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
			b.problem(annotation(a.annotation), quoted(name, err.Error()+"; endpoints are chosen at random"))
		}
		break
	}
	size, given := b.svc.Annotations[tableSize]
	if !given || m.Key == balance.Chance {
		return m
	}
	n, err := strconv.ParseUint(size, 10, 32)
	if err != nil || !slices.Contains(balance.Sizes[:], uint32(n)) {
		b.problem(annotation(tableSize), quoted(size, "must be one of "+strings.Trim(fmt.Sprint(balance.Sizes), "[]")+"; the default size for the number of endpoints applies"))
		return m
	}
	m.Size = uint32(n)
	return m
}

// sliceWeights are the weights of the endpoints of one slice.
type sliceWeights struct {
	// others is the weight of all endpoints that have no weight of their own.
	others uint16
	own    map[netip.Addr]uint16
}

func (w *sliceWeights) of(a netip.Addr) uint16 {
	if own, has := w.own[a]; has {
		return own
	}
	return w.others
}

// weightsOf returns the weights of a slice. It calls invalid for each invalid weight. These endpoints have weight 1.
func weightsOf(s *discoveryv1.EndpointSlice, invalid func(field, reason string)) sliceWeights {
	w := sliceWeights{others: 1}
	if text, given := s.Annotations[ciliumWeight]; given {
		if n, ok := weightOf(text); ok {
			w.others = n
		} else {
			invalid(annotation(ciliumWeight), quoted(text, notWeight))
		}
	}
	list, given := s.Annotations[weights]
	if !given {
		return w
	}
	w.own = map[netip.Addr]uint16{}
	for item := range strings.SplitSeq(list, ",") {
		left, right, _ := strings.Cut(strings.TrimSpace(item), "=")
		addr, err := parseRaw(left)
		n, ok := weightOf(right)
		switch {
		case err != nil:
			invalid(annotation(weights), quoted(item, err.Error()))
		case !ok:
			invalid(annotation(weights), quoted(item, notWeight))
		default:
			w.own[addr.Unmap()] = n
		}
	}
	return w
}

const notWeight = "not a weight from 0 to 65535"

func weightOf(text string) (uint16, bool) {
	n, err := strconv.ParseUint(text, 10, 16)
	return uint16(n), err == nil
}

// quarantine returns the traits of an endpoint of weight 0: it gets no new connections, and may continue existing flows.
func (t traits) quarantine() traits { return t &^ (ready | terminating) }
