package apply

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"

	"github.com/kube-nftproxy/kube-nftproxy/test/fault"
)

// TestNetlinkUnderPressure: the kernel itself fails, because buffers are too small or because of foreign changes.
func TestNetlinkUnderPressure(t *testing.T) {
	for name, test := range map[string]func(*faulty){
		"a receive buffer too small for the errors": func(f *faulty) {
			f.option(f.conn, unix.SO_RCVBUF, 0)
			f.unheard("flush set ip kube-nftproxy state; flush map ip kube-nftproxy endpoints; flush map ip kube-nftproxy slots; " +
				"flush map ip6 kube-nftproxy endpoints; flush set ip6 kube-nftproxy state; flush map ip kube-nftproxy services; " +
				"flush map ip6 kube-nftproxy services; flush map ip kube-nftproxy nodeports")
			f.repairedWhile("with errors that do not fit", func() error {
				f.change()
				_, err := f.k.Sync(f.p)
				return err
			}, "delete elements", unix.ENOBUFS)
		},
		"replies truncated by a filter": func(f *faulty) {
			for _, length := range []uint32{1, 15, 16, 20, 36, 40, 100} {
				f.filter(f.conn, length)
				f.change()
				f.k.Doubt()
				if _, err := f.k.Sync(f.p); length > 60 { // a shorter reply fails at the first request, which is repeated
					f.expect("a comparison by half a list", err, "truncated")
				}
				f.sync()
				f.conn = another(f.TB, []int{f.listener})
			}
		},
		"replies dropped by a filter": func(f *faulty) {
			f.filter(f.conn, 0)
			f.change()
			_, err := f.k.Sync(f.p)
			if !errors.Is(err, nft.ErrUnknown) {
				f.Fatalf("a batch without a reply: %v, want %v", err, nft.ErrUnknown)
			}
			f.sync()
			f.filter(another(f.TB, []int{f.listener}), 0)
			start := time.Now()
			if _, err := f.k.CheckRuleset(); err == nil {
				f.Error("a request without a reply succeeded")
			}
			if took := time.Since(start); took > 5*time.Second {
				f.Errorf("the failure took %v", took)
			}
		},
		"a closed socket": func(f *faulty) {
			null, err := os.Open(os.DevNull)
			f.must(err)
			defer null.Close() //nolint:errcheck // it was only read
			f.must(unix.Dup3(int(null.Fd()), f.conn, unix.O_CLOEXEC))
			f.change()
			_, err = f.k.Sync(f.p)
			f.expect("a sync without a socket", err, "non-socket")
		},
		"a send buffer that cannot grow": func(f *faulty) {
			f.calls.Decide(func(c *fault.Call) fault.Result {
				if c.Number != unix.SYS_SETSOCKOPT {
					return fault.Result{}
				}
				switch _, option := c.Option(); option {
				case unix.SO_SNDBUFFORCE:
					return fault.Result{Errno: unix.EPERM}
				case unix.SO_SNDBUF:
					return fault.Result{Done: true} // above net.core.wmem_max, the kernel silently uses a smaller buffer
				}
				return fault.Result{}
			})
			fill(f.p, 1000, 10)
			f.change()
			for range 2 {
				_, err := f.k.Sync(f.p)
				f.expect("a batch that is too large", err, "net.core.wmem_max")
			}
		},
		"the listener's queue overrun": func(f *faulty) {
			f.option(f.listener, unix.SO_RCVBUF, 0)
			var text strings.Builder
			text.WriteString("flush map ip kube-nftproxy local-endpoints\n")
			for i := range 2000 {
				fmt.Fprintf(&text, "add element ip kube-nftproxy affinity { d47c:%x . 192.0.2.%d timeout 1h : d47c:1 }\n", i/250, i%250)
			}
			first := pod(inet.IPv4, 0)
			fmt.Fprintf(&text, "delete element ip kube-nftproxy endpoints { udp . 8000:800 . 0 }\n"+
				"add element ip kube-nftproxy endpoints { udp . 8000:800 . 0 : %s . 8081 }\n", first.Addr())
			f.load(text.String())
			heard(f.TB, f.k)
			f.repaired("an overrun")
		},
		"the listener closed": func(f *faulty) {
			closed := f.k.others.listener
			f.must(closed.Close())
			eventually(f.TB, func() bool {
				yes, err := f.k.CheckRuleset()
				return !yes && err == nil && f.k.others.listener != closed
			})
			f.load(anotherValue())
			heard(f.TB, f.k)
			f.repaired("a closed listener")
		},
		"a listener that cannot join": func(f *faulty) {
			f.calls.Decide(func(c *fault.Call) fault.Result {
				level, option := c.Option()
				joins := option == unix.NETLINK_ADD_MEMBERSHIP || option == unix.NETLINK_DROP_MEMBERSHIP
				if c.Number == unix.SYS_SETSOCKOPT && level == unix.SOL_NETLINK && joins {
					return fault.Result{Errno: unix.ENOMEM}
				}
				return fault.Result{}
			})
			f.change()
			f.sync()
			f.load(anotherValue())
			f.repaired("a change without a listener")
			f.calls.Decide(nil)
			f.settle("with a listener")
			f.load(anotherValue())
			heard(f.TB, f.k)
			f.repaired("a change that the listener heard")
		},
		"a map full of foreign elements": func(f *faulty) {
			var text strings.Builder
			size := setSizes(f.TB, f.k)["ip endpoints"]
			for i := range size {
				fmt.Fprintf(&text, "add element ip kube-nftproxy endpoints { udp . 8100:%x . 0 : 10.0.0.1 . 53 }\n", i)
				if i == size-uint32(f.k.ledger.counts[f.set("endpoints")])-1 {
					break
				}
			}
			f.unheard(text.String())
			f.repairedWhile("into a full map", func() error {
				s := sticky(7, 0, 1, 2, 3)
				f.p.Set(s.Name, s)
				_, err := f.k.Sync(f.p)
				return err
			}, "the set is full", unix.ENFILE)
		},
		"a chain that a foreign rule uses": func(f *faulty) {
			s := sticky(7, 0, numbers(0, 9)...)
			f.p.Set(s.Name, s)
			f.sync()
			f.p.Set(s.Name, nil)
			f.sync()
			retireNow(f.k)
			f.sync()
			f.unheard("add chain ip kube-nftproxy foreign; add rule ip kube-nftproxy foreign jump endpoints-of-9")
			f.repairedWhile("of a chain in use", func() error {
				retireNow(f.k)
				_, err := f.k.Sync(f.p)
				return err
			}, "delete chain", unix.EBUSY)
			for range 3 {
				retireNow(f.k)
				f.sync()
			}
			if got := run(f.TB, "nft", "list chains"); strings.Contains(got, "endpoints-of-9") || strings.Contains(got, "foreign") {
				f.Errorf("unused chains are left:\n%s", got)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFaulty(t)
			test(f)
			f.whole("afterwards")
		})
	}
}

// anotherValue returns commands that change the value of an element. The number of elements stays.
func anotherValue() string {
	return fmt.Sprintf("delete element ip kube-nftproxy endpoints { udp . 8000:800 . 0 }\n"+
		"add element ip kube-nftproxy endpoints { udp . 8000:800 . 0 : %s . 8081 }\n", pod(inet.IPv4, 0).Addr())
}

func (f *faulty) option(fd, option, value int) {
	f.Helper()
	f.must(unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, value))
}

// filter makes the kernel cut every message to a socket to a length.
func (f *faulty) filter(fd int, length uint32) {
	f.Helper()
	program := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: length}}
	f.must(unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &program[0]}))
}

// set returns a set of IPv4 by its name.
func (f *faulty) set(name string) *nft.Set {
	f.Helper()
	for _, t := range f.p.Tables() {
		for _, s := range t.Sets {
			if t.Family == inet.IPv4 && s.Name == name {
				return s
			}
		}
	}
	f.Fatalf("no set %s", name)
	return nil
}

// load changes the tables with nft, and pauses the packets until the tables are repaired.
func (f *faulty) load(text string) {
	f.Helper()
	f.pause()
	file := f.TempDir() + "/load.nft"
	f.must(os.WriteFile(file, []byte(strings.ReplaceAll(text, "; ", "\n")), 0o600))
	run(f.TB, "nft", "-f", file)
}

// unheard does the same as load while the listener is not in the kernel's group.
func (f *faulty) unheard(text string) {
	f.Helper()
	withoutListening(f.TB, f.k, func() { f.load(text) })
}

// repaired waits until a sync has repaired the change of load, and resumes the packets.
func (f *faulty) repaired(what string) {
	f.Helper()
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		yes, err := f.k.CheckRuleset()
		f.must(err)
		if yes {
			f.k.Doubt()
			if r := f.sync(); r.Kind == Full {
				break
			}
		}
		if time.Since(begin) > 10*time.Second {
			f.Fatalf("%s: nothing was repaired", what)
		}
	}
	f.resume()
}

// repairedWhile fails unless the change fails with the wanted error, or with an error that contains a word, and the next sync repairs everything.
func (f *faulty) repairedWhile(what string, change func() error, word string, want error) {
	f.Helper()
	err := change()
	if err == nil || !strings.Contains(err.Error(), word) && !errors.Is(err, want) {
		f.Fatalf("a change %s: %v, want an error with %q", what, err, word)
	}
	f.Log(err)
	if r := f.sync(); r.Kind != Full {
		f.Errorf("the next sync was %s", r.Kind)
	}
	f.resume()
}

// TestOthersCommitAllTheTime: another program changes the ruleset continuously or every 2 ms, in its own table or in the tables under test.
// Meanwhile, Services change, and the Kernel compares, reads and repairs the tables.
func TestOthersCommitAllTheTime(t *testing.T) {
	for name, c := range map[string]struct {
		table string
		rest  time.Duration
	}{
		"in a table of its own":             {"foreign", 0},
		"in a table of its own, every 2 ms": {"foreign", 2 * time.Millisecond},
		"in the same table":                 {plan.TableName, 0},
		"in the same table, every 2 ms":     {plan.TableName, 2 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFaulty(t)
			commit, end := foreignProgram(f, c.table)
			var stop atomic.Bool
			done := make(chan int)
			go func() {
				n := 0
				for ; !stop.Load(); n++ {
					time.Sleep(c.rest)
					_ = commit() // fails if a commit of the Kernel is in progress
				}
				done <- n
			}()
			changes := 60
			if testing.Short() {
				changes = 20
			}
			failed, full, whys := 0, 0, map[string]int{}
			for range changes {
				heard(t, f.k)
				f.change()
				if yes, _ := f.k.CheckRuleset(); yes {
					f.k.Doubt()
				}
				r, err := f.k.Sync(f.p)
				if err != nil {
					failed++
					t.Log(err)
					continue
				}
				f.synced()
				if r.Kind == Full {
					full++
					whys[r.Why]++
				}
			}
			stop.Store(true)
			n := <-done
			end()
			f.whole("afterwards")
			t.Logf("%d foreign commits, %d changes: %d failed, %d were full syncs: %v", n, changes, failed, full, whys)
			if n < changes {
				t.Errorf("%d foreign commits are too few", n)
			}
			if failed > changes/10 {
				t.Errorf("%d of %d changes failed", failed, changes)
			}
		})
	}
}

// foreignProgram is another program with its own connection. Each call of commit changes a set of a table, and end closes the connection.
func foreignProgram(f *faulty, name string) (commit func() error, end func()) {
	f.Helper()
	conn, err := nft.Open()
	f.must(err)
	table := &nft.Table{Family: inet.IPv4, Name: name}
	set := &nft.Set{Family: table.Family, Table: table.Name, Name: "foreign", Key: []nft.Field{nft.DstAddr(inet.IPv4)}}
	n := 0
	commit = func() error {
		n++
		b := nft.NewBatch(0)
		b.AddTable(table)
		b.AddSet(set)
		b.FlushSet(set, 0)
		b.AddElement(&nft.Element{Set: set, Key: nft.Value{}.Addr(vip(inet.IPv4, n%1000))})
		return conn.Commit(b)
	}
	return commit, func() { f.must(conn.Close()) }
}

// TestChangesAmongHarmlessOnes: the listener hears the commits of another program in its own table, and no full sync follows.
func TestChangesAmongHarmlessOnes(t *testing.T) {
	f := newFaulty(t)
	commit, end := foreignProgram(f, "foreign")
	defer end()
	for range 20 {
		f.must(commit())
		heard(t, f.k)
		f.change()
		if yes, err := f.k.CheckRuleset(); !yes || err != nil {
			t.Fatalf("the foreign commit was not noticed: %v", err)
		}
		f.k.Doubt()
		r, err := f.k.Sync(f.p)
		f.must(err)
		f.synced()
		if r.Kind != Partial {
			t.Errorf("a %s sync, because %s", r.Kind, r.Why)
		}
	}
	f.whole("afterwards")
}
