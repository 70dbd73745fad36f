package balance

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// The vectors come from lookup3.c by Bob Jenkins (driver5). Its function hashlittle is the kernel's jhash.
func TestJhash(t *testing.T) {
	for _, v := range []struct {
		key        string
		seed, want uint32
	}{
		{"", 0, 0xdeadbeef},
		{"", 0xdeadbeef, 0xbd5b7dde},
		{"Four score and seven years ago", 0, 0x17770551},
		{"Four score and seven years ago", 1, 0xcd628161},
	} {
		if got := jhash(native(v.key), v.seed); got != v.want {
			t.Errorf("jhash(%q, %#x) = %#x, want %#x", v.key, v.seed, got, v.want)
		}
	}
}

// native returns a key with the same words on this machine as the given key has on a little-endian one. The kernel reads all blocks but the last as
// words in the byte order of the CPU.
func native(key string) []byte {
	const block, word = 12, 4
	b := []byte(key)
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		return b
	}
	for end := 0; len(b)-end > block; end += block {
		for w := end; w < end+block; w += word {
			slices.Reverse(b[w : w+word])
		}
	}
	return b
}

func TestParse(t *testing.T) {
	for name, want := range map[string]Method{
		"random":             {},
		"maglev":             {Key: Flow},
		"source-hash":        {Key: Source, Prefixes: [2]uint8{32, 128}},
		"source-hash/24":     {Key: Source, Prefixes: [2]uint8{24, 128}},
		"source-hash/24,56":  {Key: Source, Prefixes: [2]uint8{24, 56}},
		"source-hash/32,128": {Key: Source, Prefixes: [2]uint8{32, 128}},
	} {
		got, err := Parse(name)
		if err != nil || got != want {
			t.Errorf("Parse(%q) = %v, %v, want %v", name, got, err, want)
		}
		if again, err := Parse(got.String()); err != nil || again != want {
			t.Errorf("Parse(%q) = %v, %v, want %v", got.String(), again, err, want)
		}
	}
	for _, name := range []string{"", "Random", "random/24", "maglev/251", "least-conn", "source-hash/", "source-hash/0", "source-hash/25", "source-hash/64",
		"source-hash/24,", "source-hash/24,129", "source-hash/24,64,8", "source-hash/+24", "source-hash/ 24"} {
		if got, err := Parse(name); err == nil {
			t.Errorf("Parse(%q) = %v, want an error", name, got)
		}
	}
}

func someEndpoints(r *rand.Rand, n int) []netip.AddrPort {
	var list []netip.AddrPort
	for len(list) < n {
		list = append(list, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())}), 8080))
		slices.SortFunc(list, netip.AddrPort.Compare)
		list = slices.Compact(list)
	}
	return list
}

func count(slots []netip.AddrPort) map[netip.AddrPort]int {
	n := map[netip.AddrPort]int{}
	for _, e := range slots {
		n[e]++
	}
	return n
}

// checkFill fails unless each slot is filled and each endpoint has its share.
func checkFill(t *testing.T, m Method, list []netip.AddrPort, weights []uint16) {
	t.Helper()
	slots := m.Fill(list, weights)
	sum := 0
	for i := range list {
		sum += weightOf(weights, i)
	}
	have, small := count(slots), false
	for i := range list { // an endpoint with a share below one slot gets one slot, and larger shares lose it
		small = small || len(slots)*weightOf(weights, i) < sum
	}
	if len(have) != len(list) {
		t.Fatalf("%v: %d of %d endpoints have a slot", m, len(have), len(list))
	}
	for i, e := range list {
		n, ideal := have[e], float64(len(slots)*weightOf(weights, i))/float64(sum)
		if off := float64(n) - ideal; (off <= -1 || off >= 1) && !small || n < 1 {
			t.Fatalf("%v: %s of weight %d has %d of %d slots, want %.1f", m, e, weightOf(weights, i), n, len(slots), ideal)
		}
	}
}

func weightOf(weights []uint16, i int) int {
	if weights == nil {
		return 1
	}
	return int(weights[i])
}

func TestFillGivesEachEndpointItsShare(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 2, 3, 10, 20, 21, 85, 341, 1000} {
		list := someEndpoints(r, n)
		weights := make([]uint16, n)
		for i := range weights {
			weights[i] = uint16(1 + r.IntN(8))
		}
		for _, m := range []Method{{}, {Key: Flow}, {Key: Source}, {Key: Flow, Size: 16381}} {
			checkFill(t, m, list, nil)
			checkFill(t, m, list, Reduce(weights))
		}
	}
	list := someEndpoints(r, 4)
	slots := Method{}.Fill(list, Reduce([]uint16{3, 3, 6, 12}))
	if have := count(slots); len(slots) != 8 || have[list[0]] != 1 || have[list[1]] != 1 || have[list[2]] != 2 || have[list[3]] != 4 {
		t.Errorf("weights 3, 3, 6, 12 give %v", have)
	}
}

func FuzzFill(f *testing.F) {
	f.Add(uint64(1), uint16(3), uint8(1), []byte{1, 1, 2})
	f.Add(uint64(2), uint16(300), uint8(0), []byte{255, 0, 7})
	f.Fuzz(func(t *testing.T, seed uint64, n uint16, key uint8, weights []byte) {
		list := someEndpoints(rand.New(rand.NewPCG(seed, 0)), 1+int(n)%300)
		given := make([]uint16, len(list))
		for i := range given {
			given[i] = 1
			if len(weights) > 0 {
				given[i] += uint16(weights[i%len(weights)])
			}
		}
		if m := (Method{Key: Key(key % 3)}); m.Slots(len(list), Reduce(given)) <= Most {
			checkFill(t, m, list, Reduce(given))
		}
	})
}

// BenchmarkLargestTables measures the largest tables that a Service can have. The time depends on the number of slots only.
func BenchmarkLargestTables(b *testing.B) {
	const slots = 32_000
	for name, c := range map[string]struct {
		method    Method
		endpoints int
		heaviest  uint16
	}{
		"maglev, equal weights":      {Method{Key: Flow, Size: 16381}, MostHashed, 1},
		"maglev, weights 65535 to 1": {Method{Key: Flow, Size: 16381}, MostHashed, 65535},
		"random, weights 16000 to 1": {Method{}, slots / 2, slots / 2},
	} {
		b.Run(name, func(b *testing.B) {
			list := someEndpoints(rand.New(rand.NewPCG(5, 6)), 200)
			for i := len(list); i < c.endpoints; i++ {
				list = append(list, netip.AddrPortFrom(netip.AddrFrom4([4]byte{11, 0, byte(i >> 8), byte(i)}), 8080))
			}
			weights := slices.Repeat([]uint16{1}, c.endpoints)
			weights[7] = c.heaviest
			for b.Loop() {
				c.method.Fill(list, weights)
			}
		})
	}
}

// BenchmarkFill prints the figures of docs/algorithms.md: the share of slots that change when one endpoint is added or removed, and the shares of
// endpoints.
func BenchmarkFill(b *testing.B) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, n := range []int{2, 3, 5, 10, 20, 50, 100, 200, 500, 1000} {
		size := sizeFor(n)
		b.Run(fmt.Sprintf("n=%d/size=%d", n, size), func(b *testing.B) {
			m := Method{Key: Flow, Size: size}
			var moved, rounds, least, most float64
			least = 1
			for b.Loop() {
				list := someEndpoints(r, n+1)
				more := m.Fill(list, nil)
				out := r.IntN(n + 1)
				less := m.Fill(slices.Delete(slices.Clone(list), out, out+1), nil)
				changed := 0
				for i := range more {
					if more[i] != less[i] {
						changed++
					}
				}
				moved += float64(changed) / float64(size)
				rounds++
				for _, have := range count(less) {
					share := float64(have) * float64(n) / float64(size)
					least, most = min(least, share), max(most, share)
				}
			}
			b.ReportMetric(100*moved/rounds, "%moved")
			b.ReportMetric(100/float64(n+1), "%ideal")
			b.ReportMetric(least, "least")
			b.ReportMetric(most, "most")
		})
	}
}

// BenchmarkSteps prints the figures of docs/algorithms.md: the mean number of slots that change with one step of slow start, and when a new endpoint
// gets its first slots, beside n others.
func BenchmarkSteps(b *testing.B) {
	r := rand.New(rand.NewPCG(5, 6))
	const full = 10
	for _, m := range []Method{{}, {Key: Flow}} {
		for _, n := range []int{2, 3, 5, 10, 50, 100, 200, 500, 1000} {
			m.Size = sizeFor(n + 1)
			b.Run(fmt.Sprintf("%s/n=%d", m, n), func(b *testing.B) {
				var first, steps, rounds float64
				for b.Loop() {
					list := someEndpoints(r, n+1)
					weights, at := slices.Repeat([]uint16{full}, n+1), r.IntN(n+1)
					before := m.Fill(slices.Delete(slices.Clone(list), at, at+1), weights[:n])
					for weights[at] = 1; weights[at] <= full; weights[at]++ {
						slots := m.Fill(list, weights)
						changed := len(slots) - len(before)
						for i := range before {
							if slots[i] != before[i] {
								changed++
							}
						}
						if before = slots; weights[at] == 1 {
							first += float64(changed)
						} else {
							steps += float64(changed)
						}
					}
					rounds++
				}
				b.ReportMetric(first/rounds, "first")
				b.ReportMetric(steps/rounds/(full-1), "slots/step")
			})
		}
	}
}
