package demand

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// sets have the time of the last held packet of each service port, as the kernel has.
type sets struct {
	*Watcher
	now    time.Time
	held   map[plan.Number]time.Time
	failed error
	// events are the Services with a new outage.
	events []string
}

func newSets() *sets {
	s := &sets{now: time.Unix(1_700_000_000, 0), held: map[plan.Number]time.Time{}}
	list := []*nft.Set{{Name: plan.HeldSet, Family: inet.IPv4}, {Name: plan.HeldSet, Family: inet.IPv6}}
	s.Watcher = New(Config{
		Reader: reader{s}, Sets: list, Now: func() time.Time { return s.now },
		Wanted: func(n types.NamespacedName) { s.events = append(s.events, n.Name) },
	})
	return s
}

// reader reads the sets, which have another method Each.
type reader struct{ *sets }

func (s reader) Each(of *nft.Set, f func(*nft.Found) bool) (whole bool, err error) {
	for h, at := range s.held {
		if left := plan.DemandTime - s.now.Sub(at); h.Family == of.Family && left > 0 {
			f(&nft.Found{Element: nft.Element{Key: nft.Value{}.Uint32(h.Number)}, Expires: left})
		}
	}
	return true, s.failed
}

// after reads the sets after a time, and compares the new Events, and the demand of all Services.
func (s *sets) after(t *testing.T, d time.Duration, events string, demand map[string]bool) {
	t.Helper()
	s.now, s.events = s.now.Add(d), nil
	if _, err := s.read(t.Context()); err != nil && s.failed == nil {
		t.Error(err)
	}
	if got := strings.Join(s.events, " "); got != events {
		t.Errorf("Events of %q, want %q", got, events)
	}
	got := map[string]bool{}
	s.Each(func(n types.NamespacedName, wanted bool) { got[n.Name] = wanted })
	lab.Same(t, demand, got, "demand")
}

func name(n string) types.NamespacedName { return types.NamespacedName{Namespace: "shop", Name: n} }

func TestEpisodes(t *testing.T) {
	s, web, web6, db := newSets(), plan.Number{Number: 1}, plan.Number{Family: inet.IPv6, Number: 1}, plan.Number{Number: 2}
	for h, n := range map[plan.Number]string{web: "web", web6: "web", db: "db"} {
		s.holds(h, name(n), s.now)
	}
	s.after(t, time.Second, "", map[string]bool{"web": false, "db": false})
	// A flood to two ports of a Service is one Event.
	for range 50 {
		s.held[web], s.held[web6] = s.now, s.now
		want := "web"
		if s.last[name("web")] != (time.Time{}) {
			want = ""
		}
		s.after(t, 50*time.Millisecond, want, map[string]bool{"web": true, "db": false})
	}
	s.after(t, plan.DemandTime-time.Second, "", map[string]bool{"web": true, "db": false})
	s.after(t, 2*time.Second, "", map[string]bool{"web": false, "db": false})
	s.held[web6] = s.now
	s.after(t, 50*time.Millisecond, "web", map[string]bool{"web": true, "db": false})
	// An endpoint wakes the Service: its demand stays for a while.
	s.holds(web, types.NamespacedName{}, s.now)
	s.holds(web6, types.NamespacedName{}, s.now)
	s.after(t, time.Second, "", map[string]bool{"web": true, "db": false})
	// The endpoint leaves: the next packet is new demand.
	s.holds(web, name("web"), s.now)
	s.holds(web6, name("web"), s.now)
	s.after(t, time.Second, "", map[string]bool{"web": true, "db": false})
	s.held[web] = s.now
	s.after(t, 50*time.Millisecond, "web", map[string]bool{"web": true, "db": false})
	s.held[web6] = s.now
	s.after(t, 50*time.Millisecond, "", map[string]bool{"web": true, "db": false})
	s.holds(web, types.NamespacedName{}, s.now)
	s.holds(web6, types.NamespacedName{}, s.now)
	s.after(t, plan.DemandTime, "", map[string]bool{"db": false})
}

// A Service that gets the number of a deleted one does not get its demand. After a restart, the demand of the earlier
// process counts.
func TestNumbersOfOthers(t *testing.T) {
	s, h := newSets(), plan.Number{Number: 7}
	s.held[h] = s.now
	s.after(t, time.Second, "", map[string]bool{})
	s.holds(h, name("new"), s.now)
	s.after(t, time.Second, "", map[string]bool{"new": false})
	s.holds(h, types.NamespacedName{}, s.now)
	s.holds(h, name("web"), time.Time{})
	s.after(t, time.Second, "web", map[string]bool{"web": true})
	s.holds(h, name("web"), s.now.Add(time.Hour)) // it changed, and holds packets as before
	s.held[h] = s.now.Add(2 * time.Second)
	s.after(t, 2*time.Second, "", map[string]bool{"web": true})
}

// The watcher takes the changes of a plan after a successful sync only. After the first one, earlier packets count.
func TestHoldersOfAPlan(t *testing.T) {
	s, h := newSets(), plan.Number{Number: 7}
	service, taken := name("web"), 0
	s.Changed = func() map[plan.Number]types.NamespacedName {
		taken++
		return map[plan.Number]types.NamespacedName{h: service}
	}
	s.held[h] = s.now.Add(-time.Second)
	s.Synced(&beside.Sync{First: true, Begun: s.now, Err: errors.New("no")})
	if taken > 0 {
		t.Error("the changes are taken after a failed sync")
	}
	s.Synced(&beside.Sync{First: true, Begun: s.now})
	s.after(t, 0, "web", map[string]bool{"web": true})
	service = name("db")
	s.Synced(&beside.Sync{Begun: s.now})
	s.after(t, 0, "", map[string]bool{"web": true, "db": false})
}

// Run reads while a service port holds packets, and never otherwise.
func TestReadingsNeedAHolder(t *testing.T) {
	s := newSets()
	s.failed = errors.New("read")
	ctx, stop := context.WithCancel(t.Context())
	ended, wanted := make(chan struct{}), make(chan struct{}, 1)
	s.Wanted = func(types.NamespacedName) { wanted <- struct{}{} }
	h := plan.Number{Number: 7}
	s.held[h] = s.now
	go func() { s.Run(ctx); close(ended) }()
	s.holds(h, name("web"), s.now)
	<-wanted
	stop()
	<-ended
	if got := s.asleep[name("web")]; len(s.asleep) != 1 || got.ports != 1 {
		t.Errorf("service ports that hold packets: %v", got)
	}
}

// kernelSets returns the kernel's sets with n elements in each family.
func kernelSets(t testing.TB, n int) (*nft.Conn, []*nft.Set) {
	t.Helper()
	lab.EnterNamespace(t)
	sets := plan.SetsNamed(plan.New(plan.Options{Families: inet.Families[:]}).Tables(), plan.HeldSet)
	for _, s := range sets {
		var list []string
		for i := range n {
			list = append(list, fmt.Sprintf("%d timeout 90s expires %ds", i+1, 90-i%60))
		}
		text := fmt.Sprintf("table %s kube-nftproxy { set held { type mark; flags dynamic,timeout; size 2048; elements = { %s }\n}\n}\n", s.Family.Keyword(), strings.Join(list, ","))
		cmd := exec.CommandContext(t.Context(), "nft", "-f", "-")
		cmd.Stdin = strings.NewReader(text)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %.200s", err, out)
		}
	}
	conn, err := nft.Open()
	lab.Must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn, sets
}

// The kernel's elements have the age of the last held packet.
func TestKernelSets(t *testing.T) {
	const n = 300
	conn, sets := kernelSets(t, n)
	got := map[uint32]bool{}
	for _, s := range sets {
		if _, err := conn.Each(s, func(f *nft.Found) bool {
			i := f.Key.AsUint32()
			got[i] = true
			if age, want := plan.DemandTime-f.Expires, time.Duration((i-1)%60)*time.Second; age < want || age > want+10*time.Second {
				t.Errorf("%s element %d: age %s, want about %s", s.Family, i, age, want)
			}
			return true
		}); err != nil {
			t.Fatal(err)
		}
	}
	if len(got) != n {
		t.Errorf("%d different elements, want %d", len(got), n)
	}
}

// BenchmarkRead measures a reading of both families. Twenty of them take a second's share of a CPU.
func BenchmarkRead(b *testing.B) {
	for _, n := range []int{1, 100, 1024} {
		b.Run(fmt.Sprintf("demand=%d", n), func(b *testing.B) {
			conn, sets := kernelSets(b, n)
			w := New(Config{Reader: conn, Sets: sets, Now: time.Now, Wanted: func(types.NamespacedName) {}})
			for i := range n {
				w.holds(plan.Number{Number: uint32(i + 1)}, name(fmt.Sprint(i)), time.Time{})
			}
			b.ResetTimer()
			for range b.N {
				if _, err := w.read(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
