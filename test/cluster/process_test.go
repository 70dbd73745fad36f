package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// parentEnv makes the test binary act as the parent in TestProcessDiesWithParent; its value is a scratch folder.
const parentEnv = "CLUSTER_TEST_PARENT"

// If the parent is killed without cleaning up, its child dies too.
func TestProcessDiesWithParent(t *testing.T) {
	if dir := os.Getenv(parentEnv); dir != "" {
		actAsParent(dir)
	}
	parent := exec.Command(os.Args[0], "-test.run=^TestProcessDiesWithParent$")
	parent.Env = append(os.Environ(), parentEnv+"="+t.TempDir())
	out, err := parent.StdoutPipe()
	lab.Must(t, err)
	lab.Must(t, parent.Start())
	line, readErr := bufio.NewReader(out).ReadString('\n')
	child, pidErr := strconv.Atoi(strings.TrimSpace(line))
	var fd int
	if pidErr == nil {
		fd, pidErr = unix.PidfdOpen(child, 0)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = parent.Wait() // always an error: it was killed
	if readErr != nil || pidErr != nil {
		t.Fatalf("read the child's process ID from %q: %v, %v", line, readErr, pidErr)
	}
	defer unix.Close(fd)
	// A pidfd becomes readable when its process ends.
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if n, err := unix.Poll(poll, 30_000); n != 1 || err != nil {
		t.Errorf("child %d lives 30 s after its parent (error %v)", child, err)
	}
}

// actAsParent starts a child, prints its process ID and waits to be killed.
func actAsParent(dir string) {
	p, err := StartProcess("sleep", filepath.Join(dir, "log"), exec.Command("sleep", "1000"))
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(p.pid)
	<-p.done
	os.Exit(1)
}

func TestProcessReportsWhyItExited(t *testing.T) {
	p, err := StartProcess("sh", filepath.Join(t.TempDir(), "log"), exec.Command("sh", "-c", "echo bad luck; exit 3"))
	lab.Must(t, err)
	err = p.Await(t.Context(), failing)
	for _, want := range []string{"wait for sh", "exit status 3", "bad luck"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want one with %q", err, want)
		}
	}
	p.Kill()
}

func TestProcessThatDoesNotExist(t *testing.T) {
	p, err := StartProcess("none", filepath.Join(t.TempDir(), "log"), exec.Command("/nonexistent/program"))
	if err == nil {
		p.Kill()
		t.Fatal("started a program that does not exist")
	}
	if !strings.Contains(err.Error(), "start none") {
		t.Errorf("got error %v, want one that names the program", err)
	}
}

func TestProcessIsWaitedFor(t *testing.T) {
	wait := func(ctx context.Context, script string) error {
		p, err := StartProcess("sh", filepath.Join(t.TempDir(), "log"), exec.Command("sh", "-c", script))
		lab.Must(t, err)
		err = p.Wait(ctx)
		select {
		case <-p.done:
		default:
			t.Errorf("%q runs after Wait", script)
		}
		return err
	}
	if err := wait(t.Context(), "exit 3"); err == nil || err.Error() != "exit status 3" {
		t.Errorf("got error %v, want exit status 3", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := wait(ctx, "sleep 1000"); !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want that of the context", err)
	}
}

func failing(context.Context) error { return errors.New("not yet") }
