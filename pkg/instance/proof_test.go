package instance

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// inNamespace and role are the variables of the environment of the processes that TestMain starts and that play a role.
const inNamespace, role = "INSTANCE_TEST_NAMESPACE", "INSTANCE_TEST_ROLE"

// TestMain runs the tests in a network namespace of their own, whose user namespace gives them CAP_NET_ADMIN over it
// also without privileges.
func TestMain(m *testing.M) {
	switch {
	case os.Getenv(role) != "":
		play(os.Getenv(role), os.Args[len(os.Args)-1])
	case os.Getenv(inNamespace) != "":
		os.Exit(m.Run())
	default:
		c := exec.Command("/proc/self/exe", os.Args[1:]...)
		c.Env = append(os.Environ(), inNamespace+"=1")
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
		c.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNET,
			AmbientCaps: []uintptr{unix.CAP_NET_ADMIN}, Pdeathsig: syscall.SIGKILL,
		}
		err := c.Run()
		switch exit := (*exec.ExitError)(nil); {
		case errors.As(err, &exit):
			os.Exit(1)
		case err != nil && os.Getenv("REQUIRE_NETNS") == "1":
			fmt.Println("make a network namespace:", err)
			os.Exit(1)
		case err != nil:
			fmt.Println("no privilege for network namespaces:", err)
		}
	}
}

// play plays a process that wants the name of a socket: "claim" claims it, "mute claim" does the same without
// proofs, "hold" and "mute hold" hold it. It prints a line for each event.
func play(part, socket string) {
	mute := strings.HasPrefix(part, "mute")
	own := message{Record: Record{ID: "x", PID: 1, Name: "x", Started: 1 << 62}, Ready: true}
	if !mute {
		v, err := newVerifier()
		if err != nil {
			fmt.Println("cannot receive a proof:", err)
			return
		}
		own.challenge = v.challenge
	}
	talk := func(conn net.Conn) {
		lines := bufio.NewReader(conn)
		_ = send(conn, own)
		for {
			m, err := receive(lines)
			switch {
			case err != nil:
				fmt.Println("closed")
				return
			case m.Yours:
				fmt.Println("yours")
			case m.Port != 0 && !mute:
				fmt.Println("proof:", m.prove(socket))
			default:
				fmt.Println("answered")
			}
		}
	}
	if strings.HasSuffix(part, "claim") {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			talk(conn)
		}
		return
	}
	l, err := net.Listen("unix", socket)
	fmt.Println("listening:", err)
	for err == nil {
		var conn net.Conn
		if conn, err = l.Accept(); err == nil {
			go talk(conn)
		}
	}
}

// act starts a process of the same user that plays a part, with or without capabilities. It returns the lines that the
// process prints.
func (c *crowd) act(part string, capable bool) <-chan string {
	self, err := os.Executable()
	lab.Must(c.T, err)
	args := []string{self, c.socket}
	if !capable {
		args = slices.Insert(args, 0, "setpriv", "--inh-caps=-all", "--ambient-caps=-all", "--no-new-privs")
	}
	cmd := exec.CommandContext(c.Context(), args[0], args[1:]...)
	cmd.Env, cmd.Stderr = append(os.Environ(), role+"="+part), os.Stderr
	out, err := cmd.StdoutPipe()
	lab.Must(c.T, err)
	lab.Must(c.T, cmd.Start())
	c.Cleanup(func() { _ = cmd.Wait() })
	lines := make(chan string, 100)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	return lines
}

// only states that one process serves now, and that this may not change.
func (c *crowd) only(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.always = name
}

func (c *crowd) awaitLine(lines <-chan string, want string) {
	c.Helper()
	for deadline := time.After(4 * patience); ; {
		select {
		case line, more := <-lines:
			if line == want {
				return
			}
			if !more {
				c.Fatalf("the process has exited without the line %q", want)
			}
			c.Log(line)
		case <-deadline:
			c.Fatalf("no line %q", want)
		}
	}
}

func (c *crowd) awaitUnknown() {
	c.Helper()
	select {
	case err := <-c.unknown:
		c.Log(err)
	case <-time.After(4 * patience):
		c.Fatal("no process is reported")
	}
}

// TestOnlyAProofStopsAProcess: a process of the same user without capabilities cannot make another one stand by,
// whether it claims the name or holds it, and whether it takes part in proofs or not.
func TestOnlyAProofStopsAProcess(t *testing.T) {
	t.Run("a claim with the capability", func(t *testing.T) {
		t.Parallel()
		c := newCrowd(t)
		c.start("a", 1, true)
		c.await("a")
		c.awaitLine(c.act("claim", true), "yours")
		c.await("")
	})
	t.Run("a claim", func(t *testing.T) {
		t.Parallel()
		c := newCrowd(t)
		c.start("a", 1, true)
		c.await("a")
		c.only("a")
		lines := c.act("claim", false)
		c.awaitLine(lines, "proof: sendto: operation not permitted")
		c.awaitLine(lines, "closed")
		c.awaitUnknown()
		c.await("a")
	})
	t.Run("a claim without a proof", func(t *testing.T) {
		t.Parallel()
		c := newCrowd(t)
		c.start("a", 1, true)
		c.await("a")
		c.only("a")
		c.awaitLine(c.act("mute claim", true), "closed")
		c.awaitUnknown()
		c.await("a")
	})
	for _, part := range []string{"hold", "mute hold"} {
		t.Run(part, func(t *testing.T) {
			t.Parallel()
			c := newCrowd(t)
			lines := c.act(part, false)
			c.awaitLine(lines, "listening: <nil>")
			c.start("a", 1, true)
			c.await("a")
			c.only("a")
			c.awaitUnknown()
			for range 2 { // a tries again, and continues to serve
				c.awaitLine(lines, "closed")
			}
			c.await("a")
		})
	}
}

// TestAProofIsForOneNameAndOneSocket: an answer to another challenge, and a message of the kernel, are no proof.
func TestAProofIsForOneNameAndOneSocket(t *testing.T) {
	t.Parallel()
	v, err := newVerifier()
	lab.Must(t, err)
	defer v.close()
	other, err := newVerifier()
	lab.Must(t, err)
	defer other.close()
	lab.Must(t, challenge{v.Port, other.Token}.prove(Name))
	lab.Must(t, v.prove(NameOf("try")))
	if err := v.verify(Name); !errors.Is(err, errUnproven) {
		t.Errorf("verify() = %v with wrong answers", err)
	}
	lab.Must(t, v.prove(Name))
	lab.Must(t, v.verify(Name))
}

// TestReclaim: a process that stands by serves again, at once, if the holder is found not to work. The holder stands
// by for it when it works again.
func TestReclaim(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	a := c.start("a", 1, true)
	c.await("a")
	if a.Reclaim() {
		t.Error("a process that serves reclaims")
	}
	b := c.start("b", 2, true)
	c.await("b")
	if unready := c.start("c", 3, false); unready.Reclaim() {
		t.Error("a process that is not ready reclaims")
	}
	c.awaitOther(a, "b")
	c.mu.Lock()
	c.several = true // until b notices
	c.mu.Unlock()
	if !a.Reclaim() || !a.Granted().Load() {
		t.Error("a does not serve again")
	}
	c.awaitOther(b, "a")
	c.await("a")
	c.start("d", sinceBoot()+int64(time.Hour), true)
	c.await("d")
}
