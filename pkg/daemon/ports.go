package daemon

import (
	"errors"
	"os"
	"sync"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// ports has the last error of each HTTP server that cannot listen.
type ports struct {
	mu     sync.Mutex
	failed map[string]error
}

// set sets the result of the last attempt to listen.
func (p *ports) set(server string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failed == nil {
		p.failed = map[string]error{}
	}
	p.failed[server] = err
}

// list returns the HTTP servers with their configured addresses.
func (p *ports) list(healthz, metrics string) []view.Port {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := []view.Port{{Name: "healthz", Address: healthz}, {Name: "metrics", Address: metrics}}
	for i := range list {
		if err := p.failed[list[i].Name]; err != nil {
			list[i].Error = cause(err)
		}
	}
	return list
}

// cause returns the text of the innermost system call's error: the address is shown elsewhere.
func cause(err error) string {
	if call := (*os.SyscallError)(nil); errors.As(err, &call) {
		return call.Err.Error()
	}
	return err.Error()
}
