package compare

import (
	"net"
	"slices"
	"strings"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// names are the service ports of elements, such as "default/web:http". The elements of frontends name them, and precede
// all other elements in the order of the sets.
type names map[plan.Subject]string

func (n names) note(e *nft.Element) {
	if of, numbered := plan.SubjectOf(e); numbered && e.Comment != "" {
		n[of] = e.Comment
	}
}

// of returns the name of the service port of an element, or "".
func (n names) of(e *nft.Element) string {
	if e.Comment != "" {
		return e.Comment
	}
	of, _ := plan.SubjectOf(e)
	return n[of]
}

// affected are the Services whose elements differ.
type affected struct {
	names names
	// present are the Services with elements in the plan (true), and in the kernel (false).
	present map[bool]map[string]bool
	changed map[string]*balance
}

// balance has the frontends and the endpoints of a Service: 1 if only the plan has one, -1 if only the kernel has it.
type balance struct{ frontends, endpoints map[string]int }

func newAffected() *affected {
	return &affected{names: names{}, present: map[bool]map[string]bool{true: {}, false: {}}, changed: map[string]*balance{}}
}

// name notes the names in elements of the kernel, or of the plan.
func (a *affected) name(elements []nft.Element, wanted bool) {
	for i := range elements {
		if a.names.note(&elements[i]); elements[i].Comment != "" {
			a.present[wanted][serviceOf(elements[i].Comment)] = true
		}
	}
}

// differ notes the different elements of a set. It reports whether all of them belong to Services.
func (a *affected) differ(have, want []nft.Element) (all bool) {
	all = true
	present := make(map[nft.Element]bool, len(have))
	for i := range have {
		present[have[i]] = true
	}
	for i := range want {
		e := want[i]
		e.Comment = nft.CutComment(e.Comment) // the kernel has only this part
		if present[e] {
			delete(present, e)
			continue
		}
		all = a.add(&e, 1) && all
	}
	for e := range present {
		all = a.add(&e, -1) && all
	}
	return all
}

// add notes a different element. It reports whether the element belongs to a Service.
func (a *affected) add(e *nft.Element, n int) bool {
	name := serviceOf(a.names.of(e))
	if name == "" {
		return false
	}
	b := a.changed[name]
	if b == nil {
		b = &balance{map[string]int{}, map[string]int{}}
		a.changed[name] = b
	}
	if e.Comment != "" && len(e.Set.Key) > 1 {
		b.frontends[frontend(e)] += n
	}
	if len(e.Set.Data) > 1 {
		b.endpoints[e.Data.AsEndpoint(e.Set.Family).String()] += n
	}
	return true
}

// changes returns the Services in the order of their names.
func (a *affected) changes() (list []view.Change) {
	for name, b := range a.changed {
		c := view.Change{Service: name, What: "changed"}
		switch {
		case !a.present[false][name]:
			c.What = "new"
		case !a.present[true][name]:
			c.What = "gone"
		}
		c.Added, c.Removed = signs(b.endpoints)
		c.FrontendsAdded, c.FrontendsRemoved = signs(b.frontends)
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b view.Change) int { return strings.Compare(a.Service, b.Service) })
	return list
}

// signs returns the names that only the plan has, and those that only the kernel has.
func signs(of map[string]int) (added, removed []string) {
	for name, n := range of {
		switch {
		case n > 0:
			added = append(added, name)
		case n < 0:
			removed = append(removed, name)
		}
	}
	slices.Sort(added)
	slices.Sort(removed)
	return added, removed
}

// serviceOf returns the Service of a service port.
func serviceOf(port string) string {
	service, _, _ := strings.Cut(port, ":")
	return service
}

// frontend returns the key of a frontend in the form of the command watch: "10.96.0.10:80/tcp", "30080/tcp".
func frontend(e *nft.Element) string {
	parts := strings.Split(keyOf(e), " . ")
	proto, port := parts[len(parts)-2], parts[len(parts)-1]
	if len(parts) > 2 {
		port = net.JoinHostPort(parts[0], port)
	}
	return port + "/" + proto
}
