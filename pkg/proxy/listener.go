package proxy

import "github.com/kube-nftproxy/kube-nftproxy/pkg/beside"

// Change makes the loop sync soon. The sync first calls a function that changes the plan. Only functions of listeners
// and questions to the loop may call Change. They must not change the plan themselves, because a foreign change may
// lead to a comparison of the tables before the next sync. The comparison drops changes of sets that are not
// [plan.Planned], and repairs other changes by a full sync.
func (p *Proxy) Change(change func()) {
	p.changes = append(p.changes, change)
	p.Schedule.Requested()
}

// concerned calls f with the listeners that a change of Services of some kinds concerns.
func (p *Proxy) concerned(by beside.Kinds, f func(*beside.Listener)) {
	for i := range p.Listeners {
		if l := &p.Listeners[i]; l.Of == 0 || l.Of&by != 0 {
			f(l)
		}
	}
}

// serve starts or stops the work of the listeners that a change of Services of some kinds concerns.
func (p *Proxy) serve(by beside.Kinds, on bool) {
	p.concerned(by, func(l *beside.Listener) {
		if l.Serve != nil {
			l.Serve(on)
		}
	})
}
