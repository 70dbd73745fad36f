package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// Process is a child that the kernel kills when this process exits in any way.
type Process struct {
	name string
	log  string // file with its output
	pid  int
	cmd  *exec.Cmd
	done chan struct{} // closed when the child has exited and err is set
	err  error
}

// StartProcess runs a command with its output in the file log. The name is for errors.
func StartProcess(name, log string, cmd *exec.Cmd) (*Process, error) {
	out, err := os.Create(log)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	p := &Process{name: name, log: log, cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// run starts the child and waits for it on one thread: the parent whose death Pdeathsig reports is the thread that forked, not
// the process (prctl(2)), so that thread must live as long as the child.
func (p *Process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := p.cmd.Start(); err != nil {
		started <- err
		return
	}
	p.pid = p.cmd.Process.Pid
	started <- nil
	p.err = p.cmd.Wait()
	close(p.done)
}

// Pid returns the child's process ID.
func (p *Process) Pid() int { return p.pid }

// Kill kills the child and waits until it has exited.
func (p *Process) Kill() {
	// The only error is that the child has exited already.
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Wait waits until the child exits, and returns why. If ctx ends before, it kills the child.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		p.Kill()
		return ctx.Err()
	}
}

// Await repeats check until it succeeds, ctx ends, or the child exits. The error quotes the end of the child's log.
func (p *Process) Await(ctx context.Context, check func(context.Context) error) error {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		err := p.try(ctx, check)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("wait for %s: ended (%v); its log ends with:\n%s", p.name, p.err, p.tail())
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w: %w; its log ends with:\n%s", p.name, ctx.Err(), err, p.tail())
		case <-ticker.C:
		}
	}
}

// try limits one check: a program that has just started may accept a connection and never answer.
func (p *Process) try(ctx context.Context, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return check(ctx)
}

// tail returns the last lines of the child's output.
func (p *Process) tail() []byte {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return []byte(err.Error())
	}
	lines := bytes.SplitAfter(text, []byte("\n"))
	return bytes.Join(lines[max(0, len(lines)-15):], nil)
}

// get returns nil if the server answers url with status 200.
func get(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return errors.New("get " + url + ": " + resp.Status + ": " + string(body))
	}
	return nil
}
