package matrix

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// destination is a kind of address of a Service.
type destination string

const (
	clusterIP      destination = "ClusterIP"
	nodePort       destination = "NodePort"
	externalIP     destination = "externalIP"
	loadBalancerIP destination = "LB IP"
)

// clusterIPAgain is the last destination of a client with session affinity. At another address, the traffic policy may have given
// the client another endpoint.
const clusterIPAgain destination = "ClusterIP again"

// destinations are in the order in which a client with session affinity connects to them.
var destinations = []destination{clusterIP, nodePort, externalIP, loadBalancerIP}

// client is a kind of client.
type client string

const (
	pod          client = "pod"           // on this node, not an endpoint
	node         client = "node"          // a process of this node
	secondary    client = "node 2nd"      // a process of this node that sends from the second address
	outside      client = "outside"       // a machine outside the cluster
	remote       client = "remote pod"    // a pod on another node, not an endpoint
	itself       client = "itself"        // an endpoint on this node
	remoteItself client = "remote itself" // an endpoint on another node, whose packets are routed here
)

var clients = []client{pod, node, secondary, outside, remote, itself, remoteItself}

// policy is a traffic policy.
type policy string

const (
	cluster policy = "Cluster"
	local   policy = "Local"
)

var policies = []policy{cluster, local}

// placement is the location of a Service's endpoints.
type placement string

const (
	localOnly   placement = "local"
	remoteOnly  placement = "remote"
	both        placement = "both"
	hostNetwork placement = "host network" // the endpoint is this node itself
	nowhere     placement = "none"
)

var placements = []placement{localOnly, remoteOnly, both, hostNetwork, nowhere}

// hosts returns the names of the endpoints' hosts.
func (p placement) hosts() []string {
	switch p {
	case localOnly:
		return []string{"pod-0", "pod-1"}
	case remoteOnly:
		return []string{"remote-0", "remote-1"}
	case both:
		return []string{"pod-0", "pod-1", "remote-0"}
	case hostNetwork:
		return []string{"node"}
	}
	return nil
}

// onThisNode reports whether an endpoint is on this node.
func onThisNode(host string) bool { return !strings.HasPrefix(host, "remote-") }

// detector is a way to recognise the traffic of local pods.
type detector string

const (
	byClusterCIDR detector = "ClusterCIDR"
	byNodeCIDR    detector = "NodeCIDR"
	byBridge      detector = "BridgeInterface"
	byPrefix      detector = "InterfaceNamePrefix"
	byNothing     detector = "ClusterCIDR without --cluster-cidr"
)

var detectors = []detector{byClusterCIDR, byNodeCIDR, byBridge, byPrefix, byNothing}

// choice is the way in which all Services choose their endpoints.
type choice string

const (
	random     choice = "random"
	sourceHash choice = "source-hash"
	maglev     choice = "maglev"
	weights    choice = "weights" // with two more endpoints of weight 0
	maximum    choice = "maximum" // a maximum of connections that is not reached, unless the Service has session affinity; and slow start
)

var choices = []choice{random, sourceHash, maglev, weights, maximum}

// Choices with port ranges. Packets to a cluster IP, an external IP or a load-balancer IP are to a port in a range.
const (
	ranges        choice = "ranges" // and the Services scale to zero
	rangesHashed  choice = "ranges with source-hash"
	rangesSources choice = "ranges with source ranges"
)

// ranged reports whether the Services have port ranges, hashed whether a hash of the client's address selects the endpoint.
func (c choice) ranged() bool { return c == ranges || c == rangesHashed || c == rangesSources }
func (c choice) hashed() bool { return c == sourceHash || c == rangesHashed }

// rangedModes returns the modes with port ranges.
func rangedModes() []mode {
	return []mode{{byNodeCIDR, false, ranges}, {byBridge, true, rangesHashed}, {byPrefix, false, rangesSources}}
}

// Choices with packets that are not to a port of a Service; see request.
const (
	vipsReady  choice = "VIPs answer ping while ready and refuse all unused ports"
	vipsAlways choice = "VIPs always answer ping, and external IPs refuse unused ports"
)

func (c choice) vips() bool { return c == vipsReady || c == vipsAlways }

// vipModes returns the modes of requests other than served.
func vipModes() []mode {
	return []mode{{byClusterCIDR, false, vipsReady}, {byBridge, true, vipsAlways}}
}

// request is the kind of a packet to an address of a Service.
type request string

const (
	served     request = "" // to a port of the Service
	unusedPort request = "unused port"
	ping       request = "ping"
)

// mode holds the settings of the program and of all Services.
type mode struct {
	detector      detector
	masqueradeAll bool
	choice        choice
}

// base is the mode that includes SCTP. docs/semantics.md compares the others with it.
var base = mode{byClusterCIDR, false, random}

// modes returns all settings of the program. kube-proxy has only the random choice.
func modes() (all []mode) {
	for _, masqueradeAll := range []bool{false, true} {
		for _, d := range detectors {
			all = append(all, mode{d, masqueradeAll, random})
		}
	}
	return all
}

// variedModes returns the same, with the choices in turn. A detector has different ones with and without masquerade-all.
func variedModes() []mode {
	all := modes()
	for i := range all {
		all[i].choice = choices[(i+i/len(detectors))%len(choices)]
	}
	return all
}

func (m mode) String() string {
	text := string(m.detector)
	if m.masqueradeAll {
		text += ", masquerade all"
	}
	if m.choice != random {
		text += ", " + string(m.choice)
	}
	return text
}

func (m mode) protocols() []inet.Protocol {
	if m == base {
		return []inet.Protocol{inet.TCP, inet.UDP, inet.SCTP}
	}
	return []inet.Protocol{inet.TCP, inet.UDP}
}

// service holds the properties that distinguish Services.
type service struct {
	internal, external policy
	placement          placement
	affinity           bool
}

func services() (all []service) {
	for _, internal := range policies {
		for _, external := range policies {
			for _, p := range placements {
				all = append(all, service{internal, external, p, false}, service{internal, external, p, true})
			}
		}
	}
	return all
}

// cell is a point of the matrix.
type cell struct {
	mode     mode
	service  service
	dest     destination
	client   client
	family   inet.Family
	protocol inet.Protocol // 0 for ping
	request  request
}

func (c cell) String() string {
	affinity := ""
	if c.service.affinity {
		affinity = ", affinity"
	}
	return fmt.Sprintf("[%s] %s -> %s %s, iTP %s, eTP %s, endpoints %s%s, %s, %s", c.mode, c.client, c.dest, c.request,
		c.service.internal, c.service.external, c.service.placement, affinity, c.family, c.protocol)
}

// possible reports whether the client exists. The clients itself and remoteItself need a local or a remote endpoint. An endpoint on
// the host network is this node.
func (c cell) possible() bool {
	_, ok := c.host()
	return ok
}

// host returns the name of the client's host.
func (c cell) host() (name string, ok bool) {
	switch c.client {
	case pod:
		return "pod-2", true
	case node, secondary:
		return "node", true
	case outside:
		return "client", true
	case remote:
		return "remote-2", true
	}
	for _, host := range c.service.placement.hosts() {
		if onThisNode(host) == (c.client == itself) {
			return host, true
		}
	}
	return "", false
}

// group holds all cells that differ only in the destination. The client connects to them in sequence, because with session affinity
// the result at one destination depends on the previous ones.
type group []cell

// vipGroups returns a group for each possible packet that is not to a port of a Service.
func vipGroups(m mode) (all []group) {
	for _, svc := range services() {
		for _, who := range clients {
			for _, family := range inet.Families {
				for _, dest := range []destination{clusterIP, externalIP, loadBalancerIP} {
					for _, c := range []cell{{protocol: inet.TCP, request: unusedPort}, {protocol: inet.UDP, request: unusedPort}, {request: ping}} {
						c.mode, c.service, c.dest, c.client, c.family = m, svc, dest, who, family
						if c.possible() && !svc.affinity {
							all = append(all, group{c})
						}
					}
				}
			}
		}
	}
	return all
}

// groups returns all groups of a mode, and the number of impossible cells.
func groups(m mode) (all []group, leftOut int) {
	if m.choice.vips() {
		return vipGroups(m), 0
	}
	for _, svc := range services() {
		for _, who := range clients {
			for _, family := range inet.Families {
				for _, protocol := range m.protocols() {
					var g group
					for _, dest := range destinations {
						if m.choice.ranged() && dest == nodePort {
							continue // not in ranges: another service port
						}
						g = append(g, cell{m, svc, dest, who, family, protocol, served})
					}
					if svc.affinity {
						g = append(g, cell{m, svc, clusterIPAgain, who, family, protocol, served})
					}
					if g[0].possible() {
						all = append(all, g)
					} else {
						leftOut += len(g)
					}
				}
			}
		}
	}
	return all, leftOut
}

// TestMatrixIsComplete counts the cells, and the values of every coordinate.
func TestMatrixIsComplete(t *testing.T) {
	cells, leftOut := 0, 0
	seen := map[cell]bool{}
	times := map[string]int{}
	for _, m := range variedModes() {
		all, without := groups(m)
		leftOut += without
		for _, g := range all {
			for _, c := range g {
				cells++
				seen[c] = true
				for _, value := range []string{
					string(c.mode.choice), string(c.mode.detector), fmt.Sprint("masquerade all ", c.mode.masqueradeAll), string(c.dest), string(c.client),
					"iTP " + string(c.service.internal), "eTP " + string(c.service.external), "endpoints " + string(c.service.placement),
					fmt.Sprint("affinity ", c.service.affinity), c.family.String(), c.protocol.String(),
				} {
					times[value]++
				}
			}
		}
	}
	// A pair is a placement and a client that exists with it. Five clients exist in all five placements, a local endpoint in three, a
	// remote one in two. For one mode, family and protocol, each pair has 2 × 2 policies, and 4 destinations without affinity and 5
	// with affinity. There are two families, and ten modes with two protocols each; one mode has a third protocol.
	const (
		pairs     = 5*5 + 3 + 2
		perFamily = 2 * 2 * (4 + 5) * pairs
		total     = perFamily * 2 * (2*10 + 1)
		missing   = 2 * 2 * (4 + 5) * (2 + 3) * 2 * (2*10 + 1)
	)
	if cells != total || len(seen) != total || leftOut != missing {
		t.Errorf("%d cells, %d of them different, %d left out; want %d and %d", cells, len(seen), leftOut, total, missing)
	}
	const perMode, perPair = perFamily * 2 * 2, total / pairs
	want := map[string]int{
		"ClusterCIDR": 2*perMode + 2*perFamily, "NodeCIDR": 2 * perMode, "BridgeInterface": 2 * perMode,
		"InterfaceNamePrefix": 2 * perMode, "ClusterCIDR without --cluster-cidr": 2 * perMode,
		"random": 2*perMode + 2*perFamily, "source-hash": 2 * perMode, "maglev": 2 * perMode, "weights": 2 * perMode, "maximum": 2 * perMode,
		"masquerade all false": 5*perMode + 2*perFamily, "masquerade all true": 5 * perMode,
		"ClusterIP": total * 2 / 9, "NodePort": total * 2 / 9, "externalIP": total * 2 / 9, "LB IP": total * 2 / 9,
		"ClusterIP again": total / 9,
		"pod":             5 * perPair, "node": 5 * perPair, "node 2nd": 5 * perPair, "outside": 5 * perPair, "remote pod": 5 * perPair,
		"itself": 3 * perPair, "remote itself": 2 * perPair,
		"iTP Cluster": total / 2, "iTP Local": total / 2, "eTP Cluster": total / 2, "eTP Local": total / 2,
		"endpoints local": 6 * perPair, "endpoints remote": 6 * perPair, "endpoints both": 7 * perPair,
		"endpoints host network": 6 * perPair, "endpoints none": 5 * perPair,
		"affinity false": total * 4 / 9, "affinity true": total * 5 / 9, "IPv4": total / 2, "IPv6": total / 2,
		"tcp": 20 * perFamily, "udp": 20 * perFamily, "sctp": 2 * perFamily,
	}
	lab.Same(t, want, times, "cells with each value")
}
