package scenario

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// history is a sequence of changes of a cluster and its proxy, as data: it can be replayed, in parts, and written as a scenario.
type history struct {
	flags []string
	steps []*moment
}

// moment is one step of a history.
type moment struct {
	// write are new or replaced files by name; remove are removed ones, which may be missing.
	write  map[string]manifest
	remove []string
	// faults happen before the files are written.
	faults []string
	// packets are sent after the plan is committed.
	packets []question
	// hasty starts the next step before unused chains are deleted.
	hasty bool
}

// manifest is the objects of a file, as nested maps and lists.
type manifest []map[string]any

// question is a packet. Its result may depend on earlier packets.
type question struct {
	from     string
	source   netip.Addr
	to       netip.AddrPort
	protocol corev1.Protocol
	// flow, unless empty, is a UDP client that keeps sending from the same port.
	flow string
}

func (m *moment) put(file string, objects manifest) {
	m.remove = slices.DeleteFunc(m.remove, func(name string) bool { return name == file })
	m.write[file] = objects
}

func (m *moment) delete(file string) {
	delete(m.write, file)
	m.remove = append(m.remove, file)
}

func (m *moment) clone() *moment {
	c := *m
	c.write, c.remove, c.faults, c.packets = maps.Clone(m.write), slices.Clone(m.remove), slices.Clone(m.faults), slices.Clone(m.packets)
	return &c
}

func (h *history) clone() *history {
	c := &history{flags: h.flags}
	for _, m := range h.steps {
		c.steps = append(c.steps, m.clone())
	}
	return c
}

// lengths are the numbers of steps of histories. Many short histories cover many situations. Long histories find faults that depend on
// events long ago.
var lengths = []int{30, 60, 60, 120, 300}

func lengthOf(seed uint64) int { return lengths[seed%uint64(len(lengths))] }

// By default, histories are played for a number of steps, or for a time on a slow machine.
const (
	defaultSteps = 100
	defaultTime  = time.Minute
)

// TestHistories plays random histories in sequence up to a number of steps: always the same ones, unless the environment sets a
// duration or a seed. After each step the kernel holds exactly the plan from scratch, and packets match the oracle. Sometimes
// nft's listing is compared with that of tables programmed at once. A failure is shrunk and written as a scenario.
func TestHistories(t *testing.T) {
	t.Parallel()
	steps, most := lab.Setting(t, "HISTORY_STEPS", 0), defaultTime
	if minutes := lab.Setting(t, "HISTORY_MINUTES", 0); minutes > 0 {
		steps, most = math.MaxInt, time.Duration(minutes)*time.Minute
	} else if steps > 0 {
		most = 365 * 24 * time.Hour
	}
	other := uint64(100_003) // a history of 120 steps
	if os.Getenv("HISTORY_MINUTES") != "" {
		other = uint64(time.Now().UnixMilli())
	}
	seed := lab.Setting(t, "HISTORY_SEED", other)
	for name, seed := range map[string]uint64{"some": 1, "others": seed, "direct": seed} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlayer(newLab(t))
			until := time.Now().Add(most) // a parallel test may begin after others have ended
			p.until, p.listings = until, lab.ForTest(t, lab.Config{})
			for ; p.steps < cmp.Or(steps, defaultSteps) && time.Now().Before(until); seed++ {
				h := newHistory(seed, lengthOf(seed), name == "direct")
				if f := p.play(h); f != nil {
					t.Errorf("HISTORY_SEED=%d, after %d steps in all: %s", seed, p.steps, f)
					t.Fatal(p.shrunk(h, f, fmt.Sprintf("history-%d", seed)))
				}
			}
			t.Logf("seeds before %d: %s", seed, p.tally())
			p.checkFairness(t)
		})
	}
}

// tally describes the amount of work.
func (p *player) tally() string {
	return fmt.Sprintf("%d histories, %d steps, %d faults, %d packets: %v; endpoints by a hash: %v; %d times a UDP client stayed with its endpoint, %d times it could not; "+
		"%d times an endpoint was starting, %d service ports were full, %d packets were passed on",
		p.plays, p.steps, p.faults, p.probes, p.outcomes, p.hashed, p.continued, p.moved, p.starting, p.fills, p.passed)
}

// checkFairness: each endpoint gets a share of packets in proportion to its weight. Chi-square, by the Wilson-Hilferty approximation, with a
// probability of a false alarm of one in a hundred million.
func (p *player) checkFairness(t *testing.T) {
	t.Helper()
	const mostSigmas = 5.6
	for _, d := range p.drawn {
		n := len(d.weights)
		total, weight, sum := 0, 0, 0.0
		for i := range n {
			total += d.times[i]
			weight += d.weights[i]
		}
		if total*d.weights[n-1] < 20*weight {
			continue
		}
		for i, w := range d.weights {
			expected := float64(total*w) / float64(weight)
			sum += (float64(d.times[i]) - expected) * (float64(d.times[i]) - expected) / expected
		}
		k := float64(n - 1)
		if sigmas := (math.Cbrt(sum/k) - (1 - 2/(9*k))) / math.Sqrt(2/(9*k)); sigmas > mostSigmas {
			t.Errorf("endpoints with the weights %v were drawn %v times, %.1f standard deviations off", d.weights, d.times, sigmas)
		}
	}
}
