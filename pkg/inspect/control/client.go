package control

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Client queries a running program.
type Client struct {
	path string
	http http.Client
}

// NewClient returns a client that connects to the socket at a path for each query.
func NewClient(path string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
		if err != nil {
			return nil, err
		}
		if stopped := whyStopped(peer(conn)); stopped != nil { // it would never answer
			_ = conn.Close()
			return nil, stopped
		}
		return conn, nil
	}
	return &Client{path: path, http: http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}}
}

// Within limits the time until the answer begins. A program that is stopped or gets no processor would let a query
// wait forever, because its kernel accepts connections.
func (c *Client) Within(d time.Duration) *Client {
	c.http.Transport.(*http.Transport).ResponseHeaderTimeout = d
	return c
}

// Get reads an answer into a value. The parameters are names and values in turn; a name may occur several times.
func (c *Client) Get(ctx context.Context, page string, into any, params ...string) error {
	body, err := c.ask(ctx, page, params)
	if err != nil {
		return err
	}
	defer body.Close()
	if err := json.NewDecoder(body).Decode(into); err != nil {
		return fmt.Errorf("read the answer of the running program (is it of another version?): %w", err)
	}
	return nil
}

// Copy copies an answer unchanged.
func (c *Client) Copy(ctx context.Context, to io.Writer, page string, params ...string) error {
	body, err := c.ask(ctx, page, params)
	if err != nil {
		return err
	}
	defer body.Close()
	_, err = io.Copy(to, body)
	return err
}

// Follow calls f with each value of an endless answer. It calls begun as soon as no value can be missed.
func Follow[T any](ctx context.Context, c *Client, page string, begun func(), f func(*T) error) error {
	body, err := c.ask(ctx, page, nil)
	if err != nil {
		return err
	}
	defer body.Close()
	begun()
	const longest = 1 << 20
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, longest)
	for lines.Scan() {
		value := new(T)
		if err := json.Unmarshal(lines.Bytes(), value); err != nil {
			return fmt.Errorf("read a line of the running program: %w", err)
		}
		if err := f(value); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return errors.Join(errors.New("the running program has exited"), lines.Err())
}

func (c *Client) ask(ctx context.Context, page string, params []string) (io.ReadCloser, error) {
	values := url.Values{}
	for i := 0; i+1 < len(params); i += 2 {
		values.Add(params[i], params[i+1])
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://kube-nftproxy/"+page+"?"+values.Encode(), nil)
	if err != nil {
		return nil, err
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, c.unreachable(err)
	}
	if response.StatusCode == http.StatusOK {
		return response.Body, nil
	}
	defer response.Body.Close()
	const longest = 4 << 10
	text, err := io.ReadAll(io.LimitReader(response.Body, longest))
	if err != nil {
		return nil, err
	}
	said := strings.TrimSpace(string(text))
	if response.StatusCode == http.StatusNotFound {
		return nil, NotFound(said)
	}
	return nil, errors.New(said)
}

// unreachable adds advice to an error about a socket without a listener.
func (c *Client) unreachable(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("no kube-nftproxy runs here, or it cannot create its socket (its log has the reason): there is "+
			"no socket %s; run the command on the node, or in the pod of the node (kubectl exec), or set "+
			"--control-socket to the value of the running program", c.path)
	case errors.Is(err, unix.ECONNREFUSED):
		return fmt.Errorf("kube-nftproxy does not run: no process answers at the socket %s; check the log of "+
			"kube-nftproxy", c.path)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("only root and the user that kube-nftproxy runs as may use the socket %s", c.path)
	}
	if stopped := (*errStopped)(nil); errors.As(err, &stopped) {
		return stopped
	}
	var failed *url.Error
	if errors.As(err, &failed) {
		if failed.Timeout() {
			return c.silent()
		}
		err = failed.Err
	}
	return fmt.Errorf("query the running program at %s: %w", c.path, err)
}

// silent returns the error for a program that listens but does not answer.
func (c *Client) silent() error {
	conn, err := net.Dial("unix", c.path)
	if err != nil {
		return fmt.Errorf("kube-nftproxy does not answer at the socket %s: %w", c.path, err)
	}
	defer func() { _ = conn.Close() }()
	pid, state := peer(conn)
	if stopped := whyStopped(pid, state); stopped != nil {
		return stopped
	}
	if state == "D" {
		return fmt.Errorf("kube-nftproxy (pid %d) runs, but does not answer: it waits for the kernel (state D; see "+
			"/proc/%d/stack); %s", pid, pid, inForce)
	}
	return fmt.Errorf("kube-nftproxy (pid %d) runs, but does not answer: it gets no processor time (a limit, a frozen container), or it hangs; kill it: "+
		"a new process takes over without a gap; %s", pid, inForce)
}

const inForce = "its rules stay in force, but changes are not programmed, and after two minutes the rules of another proxy take precedence; " +
	"kube-nftproxy trace works without it"

// errStopped is the error for a stopped process.
type errStopped struct{ pid int32 }

func (e *errStopped) Error() string {
	return fmt.Sprintf("kube-nftproxy (pid %d) is stopped, by a signal or a debugger: kill -CONT %d; "+
		"%s", e.pid, e.pid, inForce)
}

func whyStopped(pid int32, state string) error {
	if state == "T" || state == "t" {
		return &errStopped{pid}
	}
	return nil
}

// peer returns the process at the other end of a socket, and its state; zero values if unknown.
func peer(conn net.Conn) (pid int32, state string) {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, ""
	}
	if err := raw.Control(func(fd uintptr) {
		if who, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = who.Pid
		}
	}); err != nil {
		return 0, ""
	}
	return pid, stateOf(pid)
}

// stateOf returns the kernel's letter for the state of a process, or "".
func stateOf(pid int32) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(text), ") ") // the name may contain spaces
	state, _, _ := strings.Cut(rest, " ")
	return state
}
