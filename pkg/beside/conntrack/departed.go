package conntrack

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// Departed are endpoints that have left the EndpointSlices of a Service. It may change during a pass: an endpoint
// that returns keeps its connections. A nil Departed is empty and does not change.
type Departed struct {
	mu    sync.RWMutex
	addrs map[netip.Addr]struct{}
}

// Add adds an endpoint.
func (d *Departed) Add(a netip.Addr) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.addrs == nil {
		d.addrs = map[netip.Addr]struct{}{}
	}
	d.addrs[a] = struct{}{}
}

// Remove removes an endpoint, if it is present.
func (d *Departed) Remove(a netip.Addr) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.addrs, a)
}

// Clear removes all endpoints.
func (d *Departed) Clear() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.addrs = nil
}

func (d *Departed) has(a netip.Addr) bool {
	if d == nil {
		return false
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	_, has := d.addrs[a]
	return has
}

// Terminate makes TCP connections from a frontend to departed endpoints stale. After their deletion, the kernel
// evaluates the rules for the client's next segment. The client then gets a reset, from another endpoint or from the
// rule that rejects packets.
func (d *Desired) Terminate(k model.Key, departed *Departed) {
	d.set(k, frontend{departed: departed})
	d.terminates = true
}

// Exempt records a single port whose TCP connections stay, although the port is in a range of [Desired.Terminate], or
// at an address that serves its node ports.
// Any other state of the frontend in the Desired overrides this.
func (d *Desired) Exempt(k model.Key) {
	if _, known := d.frontends[k]; !known {
		d.set(k, frontend{exempt: true})
	}
}

// departed reports whether a flow is an open TCP connection to a departed endpoint.
func (d *Desired) departed(f *Flow) bool {
	if !d.terminates || f.Protocol != inet.TCP || !f.DNAT || f.Closed {
		return false
	}
	to, known := d.find(f)
	return known && to.departed.has(f.Server.Addr())
}

// errStrict is the reason why connections cannot be terminated.
var errStrict = errors.New("net.netfilter.nf_conntrack_tcp_loose is 0: the kernel would not translate the next " +
	"segment of a connection whose entry was deleted, and no reset would reach the client; established connections " +
	"stay")

// OpenToTerminate opens the table for [Desired.Terminate]. It fails if the kernel tracks only TCP connections that
// begin with a SYN. loose is the file of the sysctl nf_conntrack_tcp_loose.
func OpenToTerminate(loose string) (Table, error) {
	text, err := os.ReadFile(loose)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read nf_conntrack_tcp_loose: %w", err)
	case strings.TrimSpace(string(text)) == "0":
		return nil, errStrict
	}
	return OpenNetlink()
}
