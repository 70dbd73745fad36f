package program

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// ForTest starts a program. The end of the test kills it. If the test has failed, and the program has run until then or exited
// with an error, it shows the end of the log. Without Config.Log, the log is in a folder of the test.
func ForTest(t testing.TB, c Config) *Program {
	t.Helper()
	if c.Log == "" {
		c.Log = filepath.Join(t.TempDir(), filepath.Base(c.Path)+".log")
	}
	p, err := Start(context.WithoutCancel(t.Context()), c)
	lab.Must(t, err)
	t.Cleanup(func() {
		running := !p.Exited()
		p.Kill()
		if code := p.cmd.ProcessState.ExitCode(); t.Failed() && (running || code > 0) {
			t.Logf("end of %s:\n%s", filepath.Base(c.Log), p.LogTail(20))
		}
	})
	return p
}

// Exited reports whether the program has exited.
func (p *Program) Exited() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// Synced waits for the first sync of both families since the start, at most [lab.Patience], and returns its time.
func (p *Program) Synced(t testing.TB) time.Time {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), lab.Patience)
	defer cancel()
	at, err := p.AwaitSync(ctx, p.started)
	lab.Must(t, err)
	return at
}

// BuildForTest builds kube-nftproxy into a folder of the test, and returns its path.
func BuildForTest(t testing.TB) string {
	t.Helper()
	path, err := Build(t.Context(), t.TempDir())
	lab.Must(t, err)
	return path
}
