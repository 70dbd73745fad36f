package scenario

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/proxy"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// blind is a source that hides some fields.
type blind struct {
	proxy.Source
	service func(types.NamespacedName, *corev1.Service) *corev1.Service
}

func (b *blind) Get(name types.NamespacedName) model.Objects {
	o := b.Source.Get(name)
	o.Service = b.service(name, o.Service.DeepCopy())
	return o
}

// withoutSourceRanges hides source ranges.
func withoutSourceRanges(real proxy.Source) proxy.Source {
	return &blind{Source: real, service: func(_ types.NamespacedName, s *corev1.Service) *corev1.Service {
		if s != nil {
			s.Spec.LoadBalancerSourceRanges = nil
		}
		return s
	}}
}

// withoutInternalPolicy hides the internal policy.
func withoutInternalPolicy(real proxy.Source) proxy.Source {
	return &blind{Source: real, service: func(_ types.NamespacedName, s *corev1.Service) *corev1.Service {
		if s != nil {
			s.Spec.InternalTrafficPolicy = nil
		}
		return s
	}}
}

// withoutDeletions hides the deletion of a Service.
func withoutDeletions(real proxy.Source) proxy.Source {
	seen := map[types.NamespacedName]*corev1.Service{}
	return &blind{Source: real, service: func(name types.NamespacedName, s *corev1.Service) *corev1.Service {
		if s == nil {
			return seen[name]
		}
		seen[name] = s
		return s
	}}
}

// TestFaultsAreFoundAndShrunk breaks the proxy on purpose. The shrunk history is a scenario with very few steps and objects,
// which fails only while the proxy is broken.
func TestFaultsAreFoundAndShrunk(t *testing.T) {
	if testing.Short() {
		t.Skip("a test of the tests")
	}
	for name, c := range map[string]struct {
		distort        func(proxy.Source) proxy.Source
		seed           uint64 // of a history that finds it soon
		steps, objects int
	}{
		"source-ranges-ignored":   {withoutSourceRanges, 12, 1, 2},
		"internal-policy-ignored": {withoutInternalPolicy, 102, 1, 2},
		"deletion-forgotten":      {withoutDeletions, 16, 2, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			p := newPlayer(r.lab)
			p.folder = t.TempDir()
			p.sabotage = func(s *settings) { s.distort = c.distort }
			s := find(t, p, c.seed, name)
			t.Logf("%s", s.report)
			if len(s.h.steps) > c.steps || s.h.objects() > c.objects {
				t.Errorf("%d steps with %d objects are left, want at most %d with %d", len(s.h.steps), s.h.objects(), c.steps, c.objects)
			}
			found, err := readScenario(s.path)
			lab.Must(t, err)
			if !r.fails(t, found, c.distort) {
				t.Error("the scenario doesn't fail while the proxy is broken")
			}
			r.writePlans(t, found)
			r.scenario(t, found)
		})
	}
}

// find plays histories until one fails, and shrinks it.
func find(t *testing.T, p *player, first uint64, name string) *shrinker {
	t.Helper()
	for seed := first; seed < first+20; seed++ {
		h := newHistory(seed, lengthOf(seed), false)
		if f := p.play(h); f != nil {
			t.Logf("after %d steps: %s", p.steps, f)
			return p.shrink(h, f, name)
		}
	}
	t.Fatalf("nothing was found in %d steps", p.steps)
	return nil
}

// fails reports whether a scenario's packets or tables are wrong.
func (r *rig) fails(t *testing.T, s *scenario, distort func(proxy.Source) proxy.Source) bool {
	t.Helper()
	broken := s.settings
	broken.distort = distort
	p, err := startPipeline(r.lab.Node, broken, t.TempDir())
	lab.Must(t, err)
	defer func() {
		if err := p.close(); err != nil {
			t.Error(err)
		}
	}()
	tr := &traffic{lab: r.lab, pins: map[string]string{}, settled: p.settleFlows}
	a := &performance{player: &player{lab: r.lab}}
	bad := false
	for _, st := range s.steps {
		lab.Must(t, st.enter(p.folder))
		lab.Must(t, p.load())
		state, err := planFolder(r.lab.Node, broken, p.folder, p.kernel.assigned(), nil)
		lab.Must(t, err)
		lines, err := parsePackets(st.packets)
		lab.Must(t, err)
		diff, err := a.differs(state, false)
		lab.Must(t, err)
		bad = bad || diff != "" || len(tr.run(t.Context(), lines)) > 0
	}
	return bad
}

// writePlans does the same as -update.
func (r *rig) writePlans(t *testing.T, s *scenario) {
	t.Helper()
	folder := t.TempDir()
	for _, st := range s.steps {
		lab.Must(t, st.enter(folder))
		state, err := planFolder(r.lab.Node, s.settings, folder, nil, nil)
		lab.Must(t, err)
		st.want = r.change(s, st, state)
	}
}
