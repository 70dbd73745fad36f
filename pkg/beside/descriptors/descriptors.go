package descriptors

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/room"
)

const (
	// most is the largest number of descriptors that namespaces share: each of their sockets takes about 9 KB of the
	// program's memory.
	most = 32_768
	// reserve is the least number of descriptors that are never shared: for the ports /healthz and /metrics, the
	// control socket, netlink, the API server, manifests and log files. The program itself has about 50 open.
	reserve = 128
	// mostClients is the largest number of connections of one HTTP server.
	mostClients = 512
)

// Budget has the descriptors that namespaces share. Its methods are safe for concurrent use.
type Budget struct {
	mu   sync.Mutex
	room *room.Room
}

// New returns the budget of this process: half of the files that it may open.
func New() *Budget { return Of(files()) }

// Of returns the budget of a process that may open the given number of files.
func Of(files int) *Budget {
	return &Budget{room: room.New(max(0, min(most, files/2, files-reserve)))} //nolint:mnd // a half
}

// Clients returns the largest number of connections of one of this process's four HTTP servers, so that all of them
// together take at most a quarter of the files.
func Clients() int { return clients(files()) }

func clients(files int) int {
	const part = 16
	return max(1, min(mostClients, files/part))
}

// files returns the number of files that this process may open.
func files() int {
	limit := unix.Rlimit{Cur: 1024}
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) // it does not fail for a known resource
	return int(min(limit.Cur, 1<<30))              //nolint:mnd // larger than all limits above
}

// Take takes n descriptors for a namespace, or returns the reason why it cannot have them. Give gives them back.
func (b *Budget) Take(namespace string, n int) room.Shortage {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.room.Change(namespace, 0, n)
}

// Give gives back n descriptors of a namespace.
func (b *Budget) Give(namespace string, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.room.Change(namespace, n, 0)
}

// Taken returns the number of descriptors that all namespaces have taken.
func (b *Budget) Taken() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.room.Total()
}

// Error returns the error of a namespace that cannot have descriptors.
func (b *Budget) Error(lacks room.Shortage, namespace string) *Error {
	return &Error{lacks, namespace, b.room.Limit(), b.room.Most()}
}

// Error names the limit that does not permit another descriptor.
type Error struct {
	Lacks     room.Shortage
	Namespace string
	// Limit is the number of descriptors that all namespaces share, Most the largest number of one namespace.
	Limit, Most int
}

// Error implements error.
func (e *Error) Error() string {
	if e.Lacks == room.OfNamespace {
		return fmt.Sprintf("namespace %s has used its share of the file descriptors of this program: %d of %d",
			e.Namespace, e.Most, e.Limit)
	}
	return fmt.Sprintf("the namespaces of this node have used the %d file descriptors of this program that they share",
		e.Limit)
}

// Fix returns the remedy. The program itself also tries again as soon as there is a descriptor.
func (e *Error) Fix() string {
	fewer := "use fewer health check node ports, node ports on loopback and connections to them"
	if e.Lacks == room.OfNamespace {
		fewer += " in the namespace"
	}
	if e.Limit < most {
		return fewer + ", or raise the program's limit of open files"
	}
	return fewer
}
