package plan

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// crowd is a planner with Services that each take some of a limited quantity.
type crowd struct {
	*Planner
	services map[types.NamespacedName]*model.Service
}

// set plans a Service that takes n of a quantity, or deletes the Service if n is 0.
func (c *crowd) set(quantity, namespace string, i, n int) types.NamespacedName {
	endpoints := 1
	switch quantity {
	case "elements":
		endpoints = n - 1 // the frontend is one more element
	case "numbers":
		endpoints = 2 // a cluster IP with one endpoint needs no number
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
		names := c.TakeWaiting(4)
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
	}{
		"elements of a namespace":      {"elements", 6, 5, 5},
		"source ranges of a namespace": {"ranges", 6, 5, 5},
		"numbers":                      {"numbers", 1, 1, 0},
		"numbers for affinity":         {"affinity", 1, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			o := testOptions()
			o.Families = inet.Families[:1]
			c := crowd{New(o), map[types.NamespacedName]*model.Service{}}
			record(t, c.Planner)
			limit := roomOfOne(10)
			switch tc.quantity {
			case "elements":
				c.rooms[ofElements].Room = limit
			case "ranges":
				c.rooms[ofSourceRanges].Room = limit
			case "numbers":
				c.rooms[ofNumbers.in(0)].Room = roomOfOne(1)
			case "affinity":
				c.rooms[ofAffine.in(0)].Room = roomOfOne(1)
			}
			first := c.set(tc.quantity, "a", 1, tc.first)
			second := c.set(tc.quantity, "a", 2, tc.second)
			if len(c.Service(first).Excess()) != 0 || len(c.Service(second).Excess()) == 0 {
				t.Fatalf("left out are %v of the first, %v of the second", c.Service(first).Excess(), c.Service(second).Excess())
			}
			lab.Same(t, 0, c.again(), "Services are planned again although no room has become free")
			c.set(tc.quantity, "a", 1, tc.less)
			if n := c.again(); n != 1 || len(c.Service(second).Excess()) != 0 {
				t.Errorf("%d Services are planned again, %v of the second is left out", n, c.Service(second).Excess())
			}
			for name := range c.services {
				c.Set(name, nil)
			}
			if len(c.waiting) != 0 || c.TakeWaiting(9) != nil {
				t.Errorf("without Services, %v wait", c.waiting)
			}
		})
	}
}

// TestOneFreedElement: a Service in a lower form waits only for the elements that it lacks beyond this form.
func TestOneFreedElement(t *testing.T) {
	o := testOptions()
	o.Families = inet.Families[:1]
	c := crowd{New(o), map[types.NamespacedName]*model.Service{}}
	record(t, c.Planner)
	c.rooms[ofElements].Room = roomOfOne(10)
	c.set("elements", "a", 1, 8)
	affine := c.set("affinity", "a", 2, 1) // takes two elements, and three with affinity
	if len(c.Service(affine).Excess()) == 0 || c.Service(affine).takes[ofElements] != 2 {
		t.Fatalf("without room for affinity, the Service takes %v, and lacks %v", c.Service(affine).takes,
			c.Service(affine).Excess())
	}
	c.set("elements", "a", 1, 7)
	if c.again(); len(c.Service(affine).Excess()) != 0 {
		t.Errorf("after an element became free, the Service lacks %v", c.Service(affine).Excess())
	}
}
