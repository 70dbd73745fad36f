package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"
)

// EnterNamespace gives a test a new network namespace, whose only interface is a loopback interface that is down. The test keeps
// its thread, which is not reused. Without the privilege it behaves as ForTest.
func EnterNamespace(t testing.TB) {
	t.Helper()
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		if os.Getenv("REQUIRE_NETNS") != "1" {
			t.Skipf("no privilege for network namespaces: %v", err)
		}
		t.Fatalf("make a network namespace: %v", err)
	}
}

// ForTest returns a lab that is closed at the end of the test. Without the privilege for namespaces it skips the test, or fails
// it if REQUIRE_NETNS=1.
func ForTest(t testing.TB, c Config) *Lab {
	t.Helper()
	l, err := New(c)
	if errors.Is(err, fs.ErrPermission) && os.Getenv("REQUIRE_NETNS") != "1" {
		t.Skipf("no privilege for network namespaces: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close lab: %v", err)
		}
	})
	return l
}

// NeedIPVS skips a test if the kernel has no ipvs, or fails it if REQUIRE_IPVS is set. The kernels of hack/kernels.sh have ipvs.
func NeedIPVS(t testing.TB) {
	t.Helper()
	// If modules cannot be loaded, the feature is built in or missing.
	_ = exec.Command("modprobe", "-a", "ip_vs", "ip_vs_rr", "dummy").Run()
	_, err := os.Stat("/proc/net/ip_vs")
	switch {
	case err != nil && os.Getenv("REQUIRE_IPVS") != "":
		t.Fatal("the kernel has no ipvs, but REQUIRE_IPVS is set")
	case err != nil:
		t.Skip("the kernel has no ipvs, unlike those of hack/kernels.sh")
	}
}

// Must fails a test at once if a step of its preparation fails.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Err returns the error of a call whose result is not needed.
func Err[T any](_ T, err error) error { return err }

// Check fails a test, and lets it continue, if a step fails.
func Check(t testing.TB, err error, step string, args ...any) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", fmt.Sprintf(step, args...), err)
	}
}

// Same fails a test if two values differ. The message begins with the name of the values. The name may end with a legend such as
// "(-planned +in the kernel)".
func Same[T any](t testing.TB, want, got T, name string, args ...any) {
	t.Helper()
	name = fmt.Sprintf(name, args...)
	switch diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{})); {
	case diff == "":
	case strings.Contains(name, "(-"):
		t.Errorf("%s:\n%s", name, diff)
	case strings.Contains(diff, "{"):
		t.Errorf("%s (-want +got):\n%s", name, diff)
	default: // a number or a line of text
		t.Errorf("%s: %v, want %v", name, got, want)
	}
}

// Contains fails a test for each part that a text does not contain. The message begins with the name of the text.
func Contains(t testing.TB, text, name string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%s lacks %q:\n%s", name, part, text)
		}
	}
}

// Fails fails a test unless an error has a text. The message begins with the name of the step.
func Fails(t testing.TB, err error, text, name string, args ...any) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("%s: error %v, want one with %q", fmt.Sprintf(name, args...), err, text)
	}
}

// ProcessorTime returns the processor time of this process, including the kernel's. On a busy machine, it varies less than elapsed time.
func ProcessorTime(t testing.TB) time.Duration {
	t.Helper()
	var u unix.Rusage
	Must(t, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Allocations returns the number of allocations of f, which it calls 20 times. It counts those of all goroutines, and
// what earlier tests have started may still run. It returns the smallest number, because that is the nearest to f's own.
func Allocations(f func()) float64 {
	least := testing.AllocsPerRun(1, f)
	for range 9 {
		least = min(least, testing.AllocsPerRun(1, f))
	}
	return least
}

// Setting returns the number or the duration in an environment variable, or otherwise if the variable is empty.
func Setting[T int | uint64 | time.Duration](t testing.TB, name string, otherwise T) T {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	if _, ok := any(otherwise).(time.Duration); ok {
		d, err := time.ParseDuration(text)
		Must(t, err)
		return T(d)
	}
	n, err := strconv.ParseInt(text, 10, 64)
	Must(t, err)
	return T(n)
}

// One returns a random item of a list.
func One[T any](r *rand.Rand, list ...T) T { return list[r.IntN(len(list))] }

// Some returns up to most random items of a list, each at most once, in random order.
func Some[T any](r *rand.Rand, list []T, most int) (out []T) {
	for _, i := range r.Perm(len(list))[:r.IntN(min(most, len(list))+1)] {
		out = append(out, list[i])
	}
	return out
}

// Eventually repeats check until it returns nil, and fails the test with its last error after the time.
func Eventually(t testing.TB, within time.Duration, check func() error) {
	t.Helper()
	Must(t, Await(t.Context(), within, check))
}

// Await repeats check until it returns nil. After the time, it returns the last error.
func Await(ctx context.Context, within time.Duration, check func() error) error {
	for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		err := check()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Since(begin) > within:
			return fmt.Errorf("after %v: %w", within, err)
		}
	}
}

// Run runs a command in the namespace of the test's thread, and returns its output.
func Run(t testing.TB, name string, args ...string) string {
	t.Helper()
	return output(t, exec.Command(name, args...))
}

// Run runs a command on the host, also in a cleanup function, and returns its output.
func (h *Host) Run(t testing.TB, name string, args ...string) string {
	t.Helper()
	return output(t, h.Command(context.WithoutCancel(t.Context()), name, args...))
}

func output(t testing.TB, cmd interface{ CombinedOutput() ([]byte, error) }) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, out)
	}
	return string(out)
}
