package hostile

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/instance"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/program"
)

// silencer is the variable of the environment that makes TestSilencer a process that claims to be a newer instance.
const silencer = "HOSTILE_SILENCER"

// guests keeps the connections of TestSilencer open until the end of its process.
var guests []net.Conn

// TestSilencer is that process. It sends no proof, prints the answers, and becomes the holder if it may. When its
// connection is closed, it claims again.
func TestSilencer(t *testing.T) {
	if os.Getenv(silencer) == "" {
		t.Skip("TestAProcessWithoutCapabilitiesDoesNotSilenceTheProgram starts this process")
	}
	status, err := os.ReadFile("/proc/self/status")
	lab.Must(t, err)
	for _, field := range []string{"Uid", "CapEff", "CapBnd"} {
		fmt.Println(regexp.MustCompile(`(?m)^` + field + `:\s*(\w+)`).FindString(string(status)))
	}
	for {
		claimOnce(t)
	}
}

func claimOnce(t *testing.T) {
	conn, err := net.Dial("unix", instance.Name)
	lab.Must(t, err)
	defer conn.Close() //nolint:errcheck // nothing is lost
	claim := []byte(`{"id":"x","pid":1,"name":"x","started":4611686018427387904,"ready":true}` + "\n")
	_, err = conn.Write(claim)
	lab.Must(t, err)
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		fmt.Println(lines.Text())
		if !strings.Contains(lines.Text(), `"yours":true`) {
			continue
		}
		l, err := net.Listen("unix", instance.Name)
		lab.Must(t, err)
		for {
			guest, err := l.Accept()
			lab.Must(t, err)
			_, _ = guest.Write(claim) // some guests only look whether the name is free
			guests = append(guests, guest)
		}
	}
}

// TestAProcessWithoutCapabilitiesDoesNotSilenceTheProgram: a process of user 0 in the node's network namespace, but
// without capabilities, claims to be a newer instance. Bank's changes are still served.
func TestAProcessWithoutCapabilitiesDoesNotSilenceTheProgram(t *testing.T) {
	t.Parallel() // it mostly waits
	n := newBank(t)
	self, err := os.Executable()
	lab.Must(t, err)
	out := filepath.Join(t.TempDir(), "out")
	claimant := program.ForTest(t, program.Config{
		Host: n.Node, Path: "setpriv", Env: []string{silencer + "=1"}, Log: out,
		Args: []string{
			"--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all", "--no-new-privs", self, "-test.run=^TestSilencer$",
		},
	})
	has := func(log string, words ...string) error {
		text, err := os.ReadFile(log)
		for _, word := range words {
			if err == nil && !regexp.MustCompile(word).Match(text) {
				err = fmt.Errorf("no %q in %s", word, text)
			}
		}
		return err
	}
	n.until(patience, "the claim", func() error {
		return has(out, `Uid:\s*0\n`, `CapEff:\s*0{16}\n`, `CapBnd:\s*0{16}\n`, `"started":`)
	})
	for range 5 {
		n.bank()
	}
	n.until(3*patience, "the report", func() error { // the program waits 5 s for a proof
		return has(n.log, "a process claims to be a newer instance of this program")
	})
	if claimant.Exited() {
		t.Error("the claimant has exited")
	}
	if has(out, `"yours"`) == nil {
		t.Error("the program has yielded")
	}
}

// TestAHungInstanceIsReplaced: a newer instance takes over, and stops working without exiting. The older instance
// takes over again, without a restart, and keeps serving when the newer one works again.
func TestAHungInstanceIsReplaced(t *testing.T) {
	t.Parallel() // it mostly waits
	n := newBank(t)
	second := n.run("", filepath.Join(t.TempDir(), "log"), slices.Concat(n.flags,
		[]string{"--metrics-bind-address=127.0.0.1:10259", "--healthz-bind-address=127.0.0.1:10266"})...)
	counts := func(port int, name string, want int) func() error {
		return func() error {
			_, body, err := n.Get(t.Context(), fmt.Sprintf("http://127.0.0.1:%d/metrics", port))
			if line := fmt.Sprintf("\n%s %d\n", name, want); err == nil && !strings.Contains(string(body), line) {
				err = fmt.Errorf("no line %q", line)
			}
			return err
		}
	}
	const first, newer = 10249, 10259
	n.until(10*patience, "the newer instance serves", counts(first, "kubenftproxy_standing_by", 1))
	n.bank()
	lab.Must(t, second.Signal(syscall.SIGSTOP))
	n.serving = 1 - n.serving
	n.put("bank", append(bankSlices(n.Pods[n.serving]), bankService())...)
	t.Log("changes are served again after", n.until(time.Minute, "bank's change", n.bankServed))
	n.bank()
	n.until(patience, "one takeover", counts(first, "kubenftproxy_takeovers_total", 1))
	n.until(patience, "the older instance serves", counts(first, "kubenftproxy_standing_by", 0))
	lab.Must(t, second.Signal(syscall.SIGCONT))
	n.until(10*patience, "the newer instance stands by", counts(newer, "kubenftproxy_standing_by", 1))
	n.bank()
	n.Kill()
	n.Program = second
	n.until(10*patience, "the newer instance serves", counts(newer, "kubenftproxy_standing_by", 0))
	n.bank()
}
