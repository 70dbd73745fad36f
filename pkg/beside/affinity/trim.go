package affinity

import (
	"hash/maphash"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/room"
)

// trim decides in one reading of a map which clients to forget. The map may be half full. If it has more clients, a
// namespace keeps the first clients of the reading, up to [room.Room.Most], and further ones are forgotten until the
// map has fallen below the mark rest. So a namespace with at most that many clients loses none. Clients without a
// Service are forgotten first.
//
// trim uses no estimates: it counts the clients that it has read. While packets add clients, the kernel lists some
// clients again and again. marks has a bit for the hash of each client that was read. If the bits of two clients are
// equal, the second one is not counted, and is not forgotten.
type trim struct {
	limit, most int
	// total is the number of clients in the map. If it is not known, it is the number of clients that were read.
	total int
	known bool
	// whole is true after a reading of all clients.
	whole bool
	// read, kept and forgotten count clients.
	read, forgotten int
	kept, surplus   map[string]int
	// seen counts the clients of each Service.
	seen  map[types.NamespacedName]int
	marks []uint64
	seed  maphash.Seed
	// above is true from the time when the map is more than half full until it has fallen below rest.
	above bool
}

// newTrim returns a trim for a map of at most limit clients, which has total clients, or -1 if that is not known.
func newTrim(limit, total int) *trim {
	return &trim{
		limit: limit, most: room.New(limit).Most(),
		total: max(total, 0), known: total >= 0, above: reaches(total, limit, half),
		kept: map[string]int{}, surplus: map[string]int{}, seen: map[types.NamespacedName]int{},
		marks: make([]uint64, limit/clientsOfWord+1), seed: maphash.MakeSeed(),
	}
}

// clientsOfWord is the number of clients for which marks has a word, so that a full map sets about a sixteenth of the
// bits.
const clientsOfWord = 4

// repeats reports whether a client was read before.
func (t *trim) repeats(key []byte) bool {
	h := maphash.Bytes(t.seed, key) % uint64(64*len(t.marks)) //nolint:mnd // bits of a word
	word, bit := &t.marks[h/64], uint64(1)<<(h%64)
	repeated := *word&bit != 0
	*word |= bit
	return repeated
}

// The marks of a map in sixteenths of its limit: half is the mark above which clients are forgotten, until the map has
// at most rest. full is nearly the limit: expired clients need places for up to a second.
const (
	sixteenths = 16
	calm       = 6
	rest       = 7
	half       = 8
	full       = 15
)

// reaches reports whether more than some sixteenths of a limit are in use.
func reaches(n, limit, mark int) bool { return n > limit/sixteenths*mark }

// count counts a client of the reading.
func (t *trim) count() {
	t.read++
	t.total = max(t.total, t.read)
}

// forgets counts the next client of the reading, and decides whether to forget it. It belongs to a Service, or to none
// if the name is the zero name.
func (t *trim) forgets(service types.NamespacedName) bool {
	t.count()
	t.seen[service]++
	namespace := service.Namespace
	if !t.excess() || namespace != "" && t.kept[namespace] < t.most {
		t.kept[namespace]++
		return false
	}
	t.surplus[namespace]++
	t.forgotten++
	return true
}

// excess reports whether the map has too many clients.
func (t *trim) excess() bool {
	mark := half
	if t.above {
		mark = rest
	}
	t.above = reaches(t.total-t.forgotten, t.limit, mark)
	return t.above
}

// largest returns the namespace that has lost the most clients, or if none has lost one, the namespace with the most
// clients. service is its Service with the most clients. If only clients without a Service were read, both are zero.
func (t *trim) largest() (namespace string, service types.NamespacedName) {
	for n, kept := range t.kept {
		most, now := t.surplus[namespace], t.surplus[n]
		if n != "" && (namespace == "" || now > most || now == most && kept > t.kept[namespace]) {
			namespace = n
		}
	}
	for s, n := range t.seen {
		if s.Namespace == namespace && n > t.seen[service] {
			service = s
		}
	}
	return namespace, service
}
