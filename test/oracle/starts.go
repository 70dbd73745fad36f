package oracle

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// fullShare is the share of an endpoint that is not starting, in tenths of its weight.
const fullShare = 10

// Starts tracks the endpoints of Services with slow start (docs/algorithms.md). The zero value is a program that has not read the objects yet.
type Starts struct {
	services map[string]map[string]starting
	running  bool
}

// starting are the ready endpoints of a service port, each with the time since which it starts; zero if it has its full weight. first is the time at
// which the service port got its first endpoints; zero if that is long ago.
type starting struct {
	endpoints map[netip.AddrPort]time.Time
	first     time.Time
	slow      time.Duration
}

// Restart ends slow start: endpoints that are known at the start have their full weight.
func (s *Starts) Restart() { *s = Starts{} }

// Follow reads new objects at a time.
func (s *Starts) Follow(r *Oracle, now time.Time) {
	services := map[string]map[string]starting{}
	for _, service := range r.services {
		slow, name := slowStart(service), service.Namespace+"/"+service.Name
		if slow == 0 {
			continue
		}
		earlier, known := s.services[name]
		old := !s.running || !known && service.CreationTimestamp.Add(slow).Before(now)
		ports := map[string]starting{}
		for i := range service.Spec.Ports {
			for _, a := range clusterIPs(service) {
				of := key(service, &service.Spec.Ports[i], a.Is6())
				ready := only(unique(r.endpoints[of]), func(e endpoint) bool { return e.ready && r.here(service) })
				ports[of] = earlier[of].follow(ready, now, slow, old)
			}
		}
		services[name] = ports
	}
	s.services, s.running = services, true
}

// follow returns the state with new ready endpoints. If the service port had none, all of them have their full weight; old is then true if they were
// there before the program looked. Endpoints of a service port that got its first ones a short time ago do not start, either.
func (p starting) follow(ready []endpoint, now time.Time, slow time.Duration, old bool) starting {
	next := starting{map[netip.AddrPort]time.Time{}, p.first, slow}
	if len(p.endpoints) == 0 && old {
		next.first = time.Time{}
	} else if len(p.endpoints) == 0 {
		next.first = now
	}
	for _, e := range ready {
		since, known := p.endpoints[e.addr]
		switch {
		case known && p.share(since, now) == fullShare:
			since = time.Time{}
		case !known && len(p.endpoints) > 0 && now.Sub(next.first) >= slow:
			since = now
		}
		next.endpoints[e.addr] = since
	}
	return next
}

// share rises in nine equal steps.
func (p starting) share(since, now time.Time) int {
	if since.IsZero() {
		return fullShare
	}
	return min(fullShare, 1+int(now.Sub(since)*(fullShare-1)/p.slow))
}

// Weigh gives starting endpoints their present share. It returns the endpoints with less than their weight, sorted, in the form "SERVICE-PORT ADDRESS
// SHARE"; the share is in tenths.
func (s *Starts) Weigh(r *Oracle, now time.Time) (list []string) {
	for _, ports := range s.services {
		for of, p := range ports {
			shares := map[netip.AddrPort]int{}
			for addr, since := range p.endpoints {
				if shares[addr] = p.share(since, now); shares[addr] < fullShare {
					port, _, _ := strings.Cut(of, " ")
					list = append(list, fmt.Sprintf("%s %s %d", port, addr, shares[addr]))
				}
			}
			for i, e := range r.endpoints[of] {
				r.endpoints[of][i].weight *= cmp.Or(shares[e.addr], fullShare)
			}
		}
	}
	slices.Sort(list)
	return list
}

// slowStart returns the time until a new endpoint has its full weight; 0 without slow start, as with an invalid value.
func slowStart(s *corev1.Service) time.Duration {
	n, err := strconv.Atoi(s.Annotations["kube-nftproxy.io/slow-start"])
	if err != nil || n < 1 || n > 3600 {
		return 0
	}
	return time.Duration(n) * time.Second
}
