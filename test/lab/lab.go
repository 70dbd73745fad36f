package lab

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// Patience is the longest wait of tests for an event that normally takes milliseconds: other programs may use all processors. It
// is the one place to raise it. Only a failing test takes that long.
const Patience = time.Minute

// Config selects the hosts of a Lab besides the node.
type Config struct {
	// Pods is the number of pods on the node, at most 200.
	Pods int
	// Remotes is the number of pods elsewhere in the cluster, at most 200.
	Remotes int
	// Clients is the number of machines outside the cluster, at most 100; zero means one.
	Clients int
	// NodeAddrs are further addresses on the node's eth0. The kernel never prefers them as a source, so the node masquerades with
	// its primary addresses.
	NodeAddrs []netip.Addr
	// Bridge is the name of a bridge on the node with the pods' devices as ports; empty means no bridge. To IP, pods' packets then
	// arrive by the bridge. Packets between two pods pass through the node as without it.
	Bridge string
}

// Lab is a network of namespaces. Its methods are safe for concurrent use.
type Lab struct {
	// Node is the host for the rules under test: it forwards, and its default route leads to the client.
	Node *Host
	// Pods are the pods on the node: "pod-0" and so on.
	Pods []*Host
	// Remotes are the pods elsewhere: "remote-0" and so on.
	Remotes []*Host
	// Client is the first of Clients.
	Client *Host
	// Clients are the machines outside the cluster: "client", "client-1" and so on.
	Clients []*Host

	// prefix is the beginning of the name of every namespace of this lab.
	prefix string
	// home is the namespace that a thread returns to.
	home *os.File

	mu      sync.Mutex
	closed  bool
	servers map[*Server]struct{}
}

// New creates and connects the namespaces. The caller must Close the lab. It first removes the namespaces of killed programs. If
// errors.Is(err, fs.ErrPermission), the privilege for namespaces is missing.
func New(c Config) (*Lab, error) {
	if err := c.complete(); err != nil {
		return nil, err
	}
	sweep()
	l := &Lab{servers: map[*Server]struct{}{}}
	l.lay(c)
	if err := l.build(c); err != nil {
		return nil, errors.Join(fmt.Errorf("make lab: %w", err), l.Close())
	}
	return l, nil
}

// complete sets the defaults and rejects numbers beyond the address plan.
func (c *Config) complete() error {
	if c.Clients == 0 {
		c.Clients = 1
	}
	if c.Pods < 0 || c.Pods > 200 || c.Remotes < 0 || c.Remotes > 200 || c.Clients < 0 || c.Clients > 100 {
		return fmt.Errorf("check lab size: %d pods, %d remotes, %d clients do not fit the address plan",
			c.Pods, c.Remotes, c.Clients)
	}
	for _, addr := range c.NodeAddrs {
		if !addr.IsValid() || addr.Is4In6() || addr.Zone() != "" {
			return fmt.Errorf("check node addresses: %q is not a plain address", addr)
		}
	}
	return nil
}

// lay adds the hosts with their names and addresses to l, without namespaces.
func (l *Lab) lay(c Config) {
	host := func(name, device string) *Host {
		return &Host{Name: name, Device: device, IPv4: AddressOf(name, inet.IPv4), IPv6: AddressOf(name, inet.IPv6), lab: l}
	}
	l.Node = host("node", "")
	for i := range c.Clients {
		name := "client"
		if i > 0 {
			name = fmt.Sprintf("client-%d", i)
		}
		l.Clients = append(l.Clients, host(name, fmt.Sprintf("eth%d", i)))
	}
	l.Client = l.Clients[0]
	for i := range c.Pods {
		l.Pods = append(l.Pods, host(fmt.Sprintf("pod-%d", i), fmt.Sprintf("veth-pod%d", i)))
	}
	for i := range c.Remotes {
		l.Remotes = append(l.Remotes, host(fmt.Sprintf("remote-%d", i), fmt.Sprintf("veth-remote%d", i)))
	}
}

// addressPlan has the addresses of the first host of each kind. IPv6 addresses count in hexadecimal: ::1a follows ::19.
var addressPlan = map[string][2]string{
	"node":   {"192.0.2.1", "2001:db8::1"},
	"client": {"192.0.2.100", "2001:db8::100"},
	"pod":    {"10.244.0.10", "fd00:10:244::10"},
	"remote": {"10.244.1.10", "fd00:10:244:1::10"},
}

// AddressOf returns the address of a host with a name such as client or pod-1. It returns the zero Addr for other names.
func AddressOf(name string, f inet.Family) (addr netip.Addr) {
	kind, number, _ := strings.Cut(name, "-")
	i, err := strconv.Atoi(cmp.Or(number, "0"))
	if first, known := addressPlan[kind]; known && err == nil {
		addr = netip.MustParseAddr(first[f])
		for range i {
			addr = addr.Next()
		}
	}
	return addr
}

// Hosts returns all hosts, the node first.
func (l *Lab) Hosts() []*Host {
	hosts := []*Host{l.Node}
	hosts = append(hosts, l.Clients...)
	hosts = append(hosts, l.Pods...)
	return append(hosts, l.Remotes...)
}

// String returns a table of the hosts, one on each line: name, namespace, addresses, device on the node.
func (l *Lab) String() string {
	var b strings.Builder
	for _, h := range l.Hosts() {
		fmt.Fprintf(&b, "%-10s %-24s %-15s %-22s %s\n", h.Name, h.Netns, h.IPv4, h.IPv6, h.Device)
	}
	return b.String()
}

// build creates the namespaces of all hosts and then the links.
func (l *Lab) build(c Config) error {
	if err := l.spawn(); err != nil {
		return err
	}
	for _, h := range l.Hosts() {
		if err := h.prepare(); err != nil {
			return err
		}
	}
	return l.connect(c)
}

// spawn creates one namespace for each host, all on one thread: unshare moves the thread from one to the next.
func (l *Lab) spawn() error {
	var err error
	if l.home, err = openHome(); err != nil {
		return err
	}
	if l.prefix, err = reserve(); err != nil {
		return err
	}
	return onThread(l.home, func() error {
		for _, h := range l.Hosts() {
			if err := h.spawn(l.prefix); err != nil {
				return fmt.Errorf("make namespace of %s: %w", h.Name, err)
			}
		}
		return nil
	})
}

// openHome opens the namespace of unlocked threads.
func openHome() (*os.File, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := netns.Get()
	if err != nil {
		return nil, fmt.Errorf("open own namespace: %w", err)
	}
	return os.NewFile(uintptr(home), "home"), nil
}

// connect connects every host to the node.
func (l *Lab) connect(c Config) error {
	node, err := l.Node.netlink()
	if err != nil {
		return err
	}
	defer node.Close()
	bridge, err := l.bridge(node, c.Bridge)
	if err != nil {
		return fmt.Errorf("add bridge %s: %w", c.Bridge, err)
	}
	for i, h := range l.Hosts()[1:] {
		port := bridge
		if !slices.Contains(l.Pods, h) {
			port = nil
		}
		if err := l.plug(node, h, i, port); err != nil {
			return fmt.Errorf("connect %s: %w", h.Name, err)
		}
		if h == l.Client {
			if err := l.address(node, c.NodeAddrs); err != nil {
				return fmt.Errorf("address node: %w", err)
			}
		}
	}
	if err := l.route(node); err != nil {
		return err
	}
	for _, h := range l.Hosts() {
		if err := h.awaitLocal(h.IPv6); err != nil {
			return err
		}
	}
	return l.Node.awaitLocal(c.NodeAddrs...)
}

// Close stops all servers and removes all namespaces. It may be called again, and during probes, which then fail. A namespace
// exists until its last socket and process is gone; the caller closes connections from Dial and commands.
func (l *Lab) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	servers := l.servers
	l.servers = nil
	l.mu.Unlock()

	var errs []error
	for s := range servers {
		errs = append(errs, s.Close())
	}
	for _, h := range l.Hosts() {
		errs = append(errs, h.remove())
	}
	if l.prefix != "" {
		errs = append(errs, unreserve(l.prefix))
	}
	if l.home != nil {
		errs = append(errs, l.home.Close())
	}
	return errors.Join(errs...)
}

// adopt makes Close stop s too. It returns false if the lab is closed already.
func (l *Lab) adopt(s *Server) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.servers[s] = struct{}{}
	}
	return !l.closed
}

// disown removes a closed server.
func (l *Lab) disown(s *Server) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.servers, s)
}

// netlink opens a route socket in the host's namespace.
func (h *Host) netlink() (handle *netlink.Handle, err error) {
	err = h.Do(func() error {
		handle, err = netlink.NewHandle(netlinkRoute)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open netlink of %s: %w", h.Name, err)
	}
	return handle, nil
}
