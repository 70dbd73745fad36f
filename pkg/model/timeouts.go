package model

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// Timeouts are conntrack's timeouts of the connections to a service port, those of one of [AllTimeouts]. The zero value
// stands for the timeouts of the node.
type Timeouts struct {
	// Protocol is UDP or TCP.
	Protocol inet.Protocol
	// Unreplied is the timeout of a UDP flow in its first two seconds, and without a reply. Replied is that of any
	// other UDP flow.
	Unreplied, Replied time.Duration
	// Established is the timeout of an established TCP connection.
	Established time.Duration
}

// Values of the fields of Timeouts. Each combination in use needs an object and a chain, so there are only a few. The
// list omits the kernel's default timeouts: nft prints an object that has only these, but cannot load it.
var (
	unrepliedTimeouts   = []string{"2s", "5s", "10s", "30s", "1m"}
	repliedTimeouts     = []string{"5s", "10s", "30s", "1m", "5m", "10m", "1h"}
	establishedTimeouts = []string{"5m", "10m", "30m", "1h", "2h", "6h", "12h", "24h", "72h"}
)

// TimeoutsItem is a valid item of the annotation: its text, such as udp=5s/30s or tcp=1h, and its timeouts.
type TimeoutsItem struct {
	Text string
	Timeouts
}

// AllTimeouts returns all valid items.
var AllTimeouts = sync.OnceValue(func() (list []TimeoutsItem) {
	of := func(s string) time.Duration {
		d, _ := time.ParseDuration(s)
		return d
	}
	for _, u := range unrepliedTimeouts {
		for _, r := range repliedTimeouts {
			if of(r) >= of(u) {
				t := Timeouts{Protocol: inet.UDP, Unreplied: of(u), Replied: of(r)}
				list = append(list, TimeoutsItem{"udp=" + u + "/" + r, t})
			}
		}
	}
	for _, e := range establishedTimeouts {
		list = append(list, TimeoutsItem{"tcp=" + e, Timeouts{Protocol: inet.TCP, Established: of(e)}})
	}
	return list
})

// setTimeouts reads an item for UDP, one for TCP, or both.
func (b *builder) setTimeouts(text string) error {
	var found []Timeouts
	all := AllTimeouts()
	for item := range strings.SplitSeq(text, ",") {
		i := slices.IndexFunc(all, func(t TimeoutsItem) bool { return t.Text == strings.TrimSpace(item) })
		switch {
		case i < 0:
			return errors.New("must be items such as udp=5s/30s and tcp=1h, with times of the list in " +
				"docs/stale-connections.md")
		case len(found) > 0 && found[0].Protocol == all[i].Protocol:
			return errors.New("has two items of one protocol")
		}
		found = append(found, all[i].Timeouts)
	}
	b.timeouts = found
	return nil
}

// timeoutsOf returns the timeouts of a protocol.
func (b *builder) timeoutsOf(p inet.Protocol) Timeouts {
	i := slices.IndexFunc(b.timeouts, func(t Timeouts) bool { return t.Protocol == p })
	if i < 0 {
		return Timeouts{}
	}
	return b.timeouts[i]
}

// timeoutsNotes returns the timeouts of a Service as a sentence.
func timeoutsNotes(b *builder) (notes []string) {
	for _, t := range b.timeouts {
		if t.Protocol == inet.UDP {
			notes = append(notes, fmt.Sprintf("connection tracking keeps a new UDP flow for %v without a packet, "+
				"and for %v after a reply and 2 s (annotation %s)", t.Unreplied, t.Replied, annotationTimeouts))
		} else {
			notes = append(notes, fmt.Sprintf("connection tracking keeps a new TCP connection for %v without a packet "+
				"(annotation %s)", t.Established, annotationTimeouts))
		}
	}
	return notes
}
