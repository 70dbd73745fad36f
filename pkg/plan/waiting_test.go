package plan

import (
	"fmt"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// crowd is a planner with Services that each take some of a limited quantity.
type crowd struct {
	*Planner
	services map[types.NamespacedName]*model.Service
}

// set plans a Service that takes n of a quantity, or deletes the Service if n is 0.
func (c *crowd) set(quantity, namespace string, i, n int) types.NamespacedName {
	endpoints := 1
	if quantity == "elements" {
		endpoints = n - 1 // the frontend is one more element
	}
	s := benchService(i, endpoints, 0)
	port := s.Ports[0]
	s.Name.Namespace, port.Name.Namespace = namespace, namespace
	switch quantity {
	case "ranges":
		sources := &model.Sources{Allowed: make([]model.AddrRange, n)}
		port.Frontends[0].Sources = sources
		for i := range n {
			a := testAddr(inet.IPv4, 1, 2*i)
			sources.Allowed[i] = model.AddrRange{First: a, Last: a}
		}
	case "affinity":
		port.Affinity = 1e9
	}
	if n == 0 {
		s = nil
	}
	name := types.NamespacedName{Namespace: namespace, Name: fmt.Sprintf("svc-%d", i)}
	c.services[name] = s
	c.Set(name, s)
	return name
}

// again plans the Services of TakeWaiting, as the loop does, until TakeWaiting returns none. It returns their number.
func (c *crowd) again() (n int) {
	for {
		names := c.TakeWaiting()
		if len(names) == 0 {
			return n
		}
		n += len(names)
		for _, name := range names {
			c.Set(name, c.services[name])
		}
	}
}

// TestFreedRoomIsUsed: a Service that was left out is planned again after enough room has become free, and not before.
func TestFreedRoomIsUsed(t *testing.T) {
	for name, tc := range map[string]struct {
		quantity string
		// first and second together exceed the limit. If the first Service takes only less, the second one has room.
		first, second, less int
		// others is the number of namespaces of other Services, each of which takes a quarter of the node's room.
		others int
	}{
		"elements of a namespace":      {"elements", 6, 5, 5, 0},
		"elements of the node":         {"elements", 6, 5, 5, 3},
		"source ranges of a namespace": {"ranges", 6, 5, 5, 0},
		"source ranges of the node":    {"ranges", 6, 5, 5, 3},
		"numbers":                      {"numbers", 1, 1, 0, 0},
		"numbers for affinity":         {"affinity", 1, 1, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			o := testOptions()
			o.Families = inet.Families[:1]
			o.Room = Room{Elements: 40, SourceRanges: 40}
			if tc.quantity == "ranges" {
				o.Room.Elements = 0
			}
			c := crowd{New(o), map[types.NamespacedName]*model.Service{}}
			record(t, c.Planner)
			for i := range c.numbers[0].blocks {
				c.numbers[0].open(i, 1, false)
				c.numbers[0].blocks[i].free = 0
			}
			switch tc.quantity {
			case "numbers":
				c.numbers[0].others.free = 1
			case "affinity":
				c.numbers[0].blocks[7].free = 1
				c.numbers[0].blocks[7].used = []uint64{0, 0, 0, 0}
			}
			namespace := "a"
			for i := range tc.others {
				c.set(tc.quantity, fmt.Sprint("other-", i), 100+i, 10)
			}
			first := c.set(tc.quantity, namespace, 1, tc.first)
			if tc.others > 0 {
				namespace = "b"
			}
			second := c.set(tc.quantity, namespace, 2, tc.second)
			if len(c.Excess(first)) != 0 || len(c.Excess(second)) == 0 {
				t.Fatalf("left out are %v of the first, %v of the second", c.Excess(first), c.Excess(second))
			}
			if n := c.again(); n != 0 {
				t.Errorf("%d Services are planned again although no room has become free", n)
			}
			if tc.less > 0 {
				c.set(tc.quantity, "a", 1, tc.first+1)
				c.set(tc.quantity, "a", 1, tc.first)
				if n := c.again(); n != 0 || len(c.freed) != 0 {
					t.Errorf("%d Services are planned again although less room has become free than they take", n)
				}
			}
			c.set(tc.quantity, "a", 1, tc.less)
			if n := c.again(); n != 1 || len(c.Excess(second)) != 0 {
				t.Errorf("%d Services are planned again, %v of the second is left out", n, c.Excess(second))
			}
			for name := range c.services {
				c.Set(name, nil)
			}
			if len(c.waiting) != 0 || len(c.namespaces) != 0 || c.TakeWaiting() != nil {
				t.Errorf("without Services, %v wait, %d namespaces have taken room", c.waiting, len(c.namespaces))
			}
		})
	}
}

// TestManyServicesWaitForRoom: thousands of Services wait. Each call of TakeWaiting returns at most mostAgain of them, and all calls together return
// every Service.
func TestManyServicesWaitForRoom(t *testing.T) {
	const most = 2000
	o := testOptions()
	o.Room.Elements = 4 * 2 * most
	c := crowd{New(o), map[types.NamespacedName]*model.Service{}}
	hog := c.set("elements", "a", 0, 2*most)
	for i := range most - 1 {
		c.set("elements", "a", 1+i, 2)
	}
	small := c.set("elements", "b", most, 2)
	if len(c.waiting["a"]) != most-1 || len(c.Excess(small)) != 0 {
		t.Fatalf("%d wait", len(c.waiting["a"]))
	}
	c.set("elements", "b", most, 0)
	if names := c.TakeWaiting(); names != nil {
		t.Errorf("%v are planned again, without room", names)
	}
	c.Set(hog, nil)
	names := c.TakeWaiting()
	if len(names) == 0 || len(names) > mostAgain {
		t.Errorf("%d are planned again at once, want at most %d", len(names), mostAgain)
	}
	for _, name := range names {
		c.Set(name, c.services[name])
	}
	if n := len(names) + c.again(); n != most-1 || len(c.waiting) != 0 || slices.ContainsFunc(names, func(n types.NamespacedName) bool { return len(c.Excess(n)) > 0 }) {
		t.Errorf("%d are planned again, %d wait", n, len(c.waiting["a"]))
	}
}
