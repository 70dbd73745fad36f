//go:build e2e

package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/watch/snapshot"
	"github.com/kube-nftproxy/kube-nftproxy/test/faulty"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// snapshots is a program with a folder of snapshots, behind a server that counts its lists.
type snapshots struct {
	*besieged
	folder, socket string

	mu    sync.Mutex
	lists []string
}

func newSnapshots(t *testing.T, remotes int) *snapshots {
	t.Helper()
	b := besiege(t, remotes)
	b.tokenFile = filepath.Join(b.dir, "token")
	b.setToken("first")
	must(t, b.Kubeconfig(b.kubeconfig, faulty.Credentials{Token: b.tokenFile}))
	s := &snapshots{besieged: b, folder: filepath.Join(b.dir, "snapshots"), socket: filepath.Join(b.dir, "control")}
	b.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		counts := r.URL.Query().Get("limit") == "1" // the Nodes
		if r.Method == http.MethodGet && !faulty.IsWatch(r) && !counts && strings.HasPrefix(r.URL.Path, "/api") {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.lists = append(s.lists, faulty.Resource(r))
		}
		return false
	})
	s.apply(service("stable"), slice("stable", "stable-1", endpoint(s.Pods[0].IPv4)),
		service("gone"), slice("gone", "gone-1", endpoint(s.Pods[0].IPv4)))
	return s
}

// forget forgets earlier lists.
func (s *snapshots) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lists = nil
}

// begin starts the program, and forgets earlier lists.
func (s *snapshots) begin(t *testing.T) {
	t.Helper()
	s.forget()
	s.d = s.startOn(s.Node, s.kubeconfig, "--snapshot-dir", s.folder, "--control-socket", s.socket)
}

// listed checks the number of lists of resources other than this Node since the start of the program.
func (s *snapshots) listed(t *testing.T, want int) {
	t.Helper()
	s.listedBy(t, 1, want)
}

// listedBy checks the number of lists since the start of programs: each lists its Node.
func (s *snapshots) listedBy(t *testing.T, programs, want int) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	n, nodes := 0, 0
	for _, resource := range s.lists {
		if resource == "nodes" {
			nodes++
		} else {
			n++
		}
	}
	if n != want || nodes != programs {
		t.Errorf("lists: %v, want %d, and %d of nodes", s.lists, want, programs)
	}
}

// reboot removes the rules while the program does not run.
func (s *snapshots) reboot(t *testing.T) {
	t.Helper()
	s.d.stop()
	nft(t, s.Node, "flush ruleset")
}

// TestRestartWithSnapshot: a restart lists only the Node, and receives all changes since the exit, also deletions. If
// the API server has forgotten these changes, the program lists all objects.
func TestRestartWithSnapshot(t *testing.T) {
	s := newSnapshots(t, 1)
	s.begin(t)
	gone, stable := s.clusterIPs("gone")[0], s.clusterIPs("stable")[0]
	reach(t, s.Pods[2], gone, "pod-0")
	s.listed(t, 3)
	s.d.stop()

	s.delete(service("gone"), slice("gone", "gone-1"))
	s.apply(slice("stable", "stable-1", endpoint(s.Pods[1].IPv4)),
		service("new"), slice("new", "new-1", endpoint(s.Pods[0].IPv4)))
	s.begin(t)
	reach(t, s.Pods[2], stable, "pod-1")
	reach(t, s.Pods[2], s.clusterIPs("new")[0], "pod-0")
	eventually(t, patience, func() error { return s.served("gone", false) })
	s.listed(t, 0)
	s.awaitIdle(t)

	t.Run("after a crash", func(t *testing.T) {
		s.apply(slice("stable", "stable-1", endpoint(s.Pods[0].IPv4)))
		reach(t, s.Pods[2], stable, "pod-0")
		s.d.Kill() // the snapshot is that of the start
		s.begin(t)
		eventually(t, patience, func() error { return synced(s.d) })
		lab.Check(t, reached(t.Context(), s.Pods[2], inet.TCP, stable, "pod-0"), "the first sync has old endpoints")
		s.listed(t, 0)
		if n := len(s.d.lines("Synced", "kind=\"adopted\"")); n == 0 {
			t.Errorf("the tables were not adopted:\n%s", s.d.LogTail(30))
		}
	})
	t.Run("after compaction", func(t *testing.T) {
		s.d.stop()
		s.delete(service("new"), slice("new", "new-1"))
		s.api.KillServer()
		store := s.api.Store(t.Context())
		must(t, store.Flush())
		must(t, store.Compact())
		must(t, s.api.RestartServer(t.Context()))
		s.begin(t)
		eventually(t, patience, func() error { return s.served("new", false) })
		s.listed(t, 3)
		reach(t, s.Pods[2], stable, "pod-0")
	})
	t.Run("with a broken file", func(t *testing.T) {
		s.d.stop()
		path := filepath.Join(s.folder, "objects")
		data := []byte(mustRead(t, path))
		data[len(data)/2] ^= 1
		must(t, os.WriteFile(path, data, 0o600))
		s.begin(t)
		eventually(t, patience, func() error { return synced(s.d) })
		s.listed(t, 3)
		if len(s.d.lines("Cannot use the snapshot", "damaged")) != 1 {
			t.Errorf("the log has no reason:\n%s", s.d.LogTail(30))
		}
	})
	t.Run("etcd is restored from a backup", func(t *testing.T) {
		must(t, s.api.Backup(t.Context()))
		s.apply(service("later"), slice("later", "later-1", endpoint(s.Pods[0].IPv4)))
		eventually(t, patience, func() error { return s.served("later", true) })
		s.d.stop()
		must(t, s.api.Restore(t.Context()))
		s.begin(t)
		eventually(t, patience, func() error { return s.served("later", false) })
		s.listed(t, 3)
		reach(t, s.Pods[2], stable, "pod-0")
	})
	t.Run("the Node was registered again", func(t *testing.T) {
		s.d.stop()
		s.delete(node())
		s.apply(node())
		s.begin(t)
		eventually(t, patience, func() error { return synced(s.d) })
		s.listed(t, 3)
	})
}

// awaitIdle waits until all changes are programmed, and the snapshot of the start is written.
func (s *snapshots) awaitIdle(t *testing.T) {
	t.Helper()
	s.d.awaitSnapshot(t)
}

func (d *daemon) awaitSnapshot(t *testing.T) {
	t.Helper()
	eventually(t, patience, func() error {
		m := d.awaitIdle(patience)
		if m["kubenftproxy_snapshot_timestamp_seconds"] == 0 {
			return fmt.Errorf("no snapshot yet")
		}
		return nil
	})
}

// served reports whether the tables have a Service.
func (s *snapshots) served(name string, want bool) error { return s.servedOn(s.Node, name, want) }

func (s *snapshots) servedOn(h *lab.Host, name string, want bool) error {
	listing := nft(s, h, "list", "table", "ip", "kube-nftproxy")
	if got := strings.Contains(listing, "default/"+name); got != want {
		return fmt.Errorf("served %s: %t, want %t:\n%s", name, got, want, listing)
	}
	return nil
}

// TestRebootWithoutAPIServer: after a reboot, the program serves the Services of the snapshot until the API server
// answers.
func TestRebootWithoutAPIServer(t *testing.T) {
	s := newSnapshots(t, 1)
	s.begin(t)
	gone, stable := s.clusterIPs("gone")[0], s.clusterIPs("stable")[0]
	reach(t, s.Pods[2], stable, "pod-0")
	s.awaitIdle(t)

	t.Run("a restart does not use older objects", func(t *testing.T) {
		s.Down()
		s.d.stop()
		s.begin(t)
		never(t, 2*time.Second, func() error {
			if len(s.d.lines("serving the Services of the snapshot")) > 0 {
				return fmt.Errorf("it serves the snapshot:\n%s", s.d.LogTail(30))
			}
			return reached(t.Context(), s.Pods[2], inet.TCP, stable, "pod-0")
		})
	})
	s.reboot(t)
	nft(t, s.Node, "add table ip kube-proxy; add chain ip kube-proxy service-endpoints")
	s.begin(t)
	reach(t, s.Pods[2], stable, "pod-0")
	reach(t, s.Pods[2], gone, "pod-0")
	for _, want := range []string{"reason:  ServingSnapshot, API server", "snapshot    serves the objects of"} {
		if text, _ := runCommand(t, s.Node, "status", "--control-socket", s.socket); !strings.Contains(text, want) {
			t.Errorf("status has no %q:\n%s", want, text)
		}
	}
	m, err := s.d.scrape()
	must(t, err)
	lab.Same(t, 1.0, m["kubenftproxy_serving_snapshot"], "kubenftproxy_serving_snapshot")
	lab.Contains(t, nft(t, s.Node, "list", "tables"), "tables", "ip kube-proxy\n")

	s.delete(service("gone"), slice("gone", "gone-1"))
	s.apply(slice("stable", "stable-1", endpoint(s.Pods[1].IPv4)))
	must(t, s.Up())
	reach(t, s.Pods[2], stable, "pod-1")
	eventually(t, patience, func() error { return s.served("gone", false) })
	eventually(t, 2*patience, func() error {
		if tables := nft(t, s.Node, "list", "tables"); strings.Contains(tables, "ip kube-proxy\n") {
			return fmt.Errorf("leftovers stay after the confirmation:\n%s", tables)
		}
		return nil
	})
	m, err = s.d.scrape()
	must(t, err)
	lab.Same(t, 0.0, m["kubenftproxy_serving_snapshot"], "kubenftproxy_serving_snapshot after the confirmation")
	text, _ := runCommand(t, s.Node, "status", "--control-socket", s.socket)
	if strings.Contains(text, "ServingSnapshot") {
		t.Errorf("status after the confirmation:\n%s", text)
	}
	if n := len(s.d.lines("all objects are listed")); n > 0 {
		t.Errorf("the snapshot was rejected:\n%s", s.d.LogTail(30))
	}
}

// TestFleet: the power of 20 nodes fails while the API server is away. Each node serves the Services of its snapshot,
// and follows all changes when the API server answers again. Then all programs restart at once. No program lists more
// than its Node. At last all nodes reboot, and the API server, too: it has forgotten the versions of the snapshots, so
// each program lists once, in turn, and serves the snapshot until then.
func TestFleet(t *testing.T) {
	const size = 20
	s := newSnapshots(t, size)
	name := func(i int) string { return fmt.Sprintf("node-of-%s", s.Remotes[i].Name) }
	for i, h := range s.Remotes {
		n := node()
		n.Name = name(i)
		for k, addr := range h.Addrs() {
			n.Status.Addresses[k].Address = addr.String()
		}
		s.apply(n)
	}
	programs := make([]*daemon, size)
	start := func() {
		s.forget()
		for i, h := range s.Remotes {
			programs[i] = s.startOn(h, s.kubeconfig, "--hostname-override", name(i),
				"--snapshot-dir", filepath.Join(s.folder, name(i)))
		}
	}
	all := func(to netip.AddrPort, server string) {
		t.Helper()
		for _, h := range s.Remotes {
			reach(t, h, to, server)
		}
	}
	gone, stable := s.clusterIPs("gone")[0], s.clusterIPs("stable")[0]
	start()
	all(gone, "pod-0")
	s.listedBy(t, size, 3*size)
	for _, d := range programs {
		d.awaitSnapshot(t)
	}

	s.Down()
	for i, d := range programs {
		d.Kill()
		nft(t, s.Remotes[i], "flush ruleset")
	}
	start()
	all(stable, "pod-0")
	all(gone, "pod-0")
	s.delete(service("gone"), slice("gone", "gone-1"))
	s.apply(slice("stable", "stable-1", endpoint(s.Pods[1].IPv4)))
	must(t, s.Up())
	all(stable, "pod-1")
	for _, h := range s.Remotes {
		eventually(t, patience, func() error { return s.servedOn(h, "gone", false) })
	}
	s.listedBy(t, size, 0)

	stop := func() {
		for _, d := range programs {
			must(t, d.Signal(syscall.SIGTERM))
		}
		for _, d := range programs {
			must(t, exits(t, d.Program))
		}
	}
	for _, d := range programs {
		d.awaitSnapshot(t)
	}
	stop()
	s.apply(slice("stable", "stable-1", endpoint(s.Pods[0].IPv4)))
	start()
	all(stable, "pod-0")
	s.listedBy(t, size, 0)

	stop()
	s.Down()
	s.api.KillServer()
	for _, h := range s.Remotes {
		nft(t, h, "flush ruleset")
	}
	start()
	all(stable, "pod-0")
	must(t, s.api.RestartServer(t.Context()))
	s.apply(slice("stable", "stable-1", endpoint(s.Pods[1].IPv4)))
	must(t, s.Up())
	all(stable, "pod-1")
	for _, d := range programs {
		eventually(t, patience, func() error {
			if len(d.lines("Received all Services")) == 0 {
				return errors.New("the program still lists")
			}
			return nil
		})
	}
	s.listedBy(t, size, 3*size)
}

// changed returns a snapshot with another header and other objects, and with the right checksum.
func changed(data []byte, change func(h *snapshot.Header, objects [][]byte) [][]byte) []byte {
	var frames [][]byte
	for rest := data[:len(data)-sha256.Size]; len(rest) > 0; {
		n := 4 + binary.BigEndian.Uint32(rest)
		frames, rest = append(frames, rest[4:n]), rest[n:]
	}
	var h snapshot.Header
	_ = json.Unmarshal(frames[0], &h) // the program has just written it
	frames = append([][]byte{nil}, change(&h, frames[1:])...)
	frames[0], _ = json.Marshal(h)
	var out []byte
	for _, f := range frames {
		out = append(binary.BigEndian.AppendUint32(out, uint32(len(f))), f...)
	}
	sum := sha256.Sum256(out)
	return append(out, sum[:]...)
}

// TestUnusableSnapshots: after a reboot, a snapshot that cannot be used or written costs three lists, and the log has
// the reason. See the tests of pkg/watch/snapshot for more kinds of files.
func TestUnusableSnapshots(t *testing.T) {
	s := newSnapshots(t, 1)
	s.begin(t)
	stable := s.clusterIPs("stable")[0]
	reach(t, s.Pods[2], stable, "pod-0")
	s.awaitIdle(t)
	path := filepath.Join(s.folder, "objects")
	whole := []byte(mustRead(t, path))
	write := func(data []byte) error { return os.WriteFile(path, data, 0o600) }
	header := func(change func(h *snapshot.Header)) func() error {
		return func() error {
			return write(changed(whole, func(h *snapshot.Header, o [][]byte) [][]byte { change(h); return o }))
		}
	}
	mount := func(options string) error { return unix.Mount("none", s.folder, "tmpfs", 0, options) }
	for _, c := range []struct {
		name, reason string
		// make prepares an empty folder.
		make func() error
		// unwritable is true if the program cannot write a new snapshot. lists is their number.
		unwritable bool
		lists      int
	}{
		{"half", "damaged", func() error { return write(whole[:len(whole)/2]) }, false, 3},
		{"from the future", "from the future: the clock of this node is 25h",
			header(func(h *snapshot.Header) { h.Saved = time.Now().Add(25 * time.Hour) }), false, 3},
		{"the version 0", "not well formed", header(func(h *snapshot.Header) { h.Versions["services"] = "0" }), false, 3},
		{"a later version", "a backup was restored",
			header(func(h *snapshot.Header) { h.Versions["services"] = "999999999" }), false, 3},
		{"no versions", "", header(func(h *snapshot.Header) { h.Versions = nil }), false, 3},
		{"each object twice", "exactly one Node", func() error {
			return write(changed(whole, func(_ *snapshot.Header, o [][]byte) [][]byte { return append(o, o...) }))
		}, false, 3},
		{"of another user", "of user 1000", func() error { return errors.Join(write(whole), os.Chown(path, 1000, 0)) }, false, 3},
		{"a device", "not a regular file", func() error { return unix.Mknod(path, unix.S_IFCHR|0o600, 1<<8|5) }, false, 3},
		{"huge", "more than", func() error { return errors.Join(write(whole), os.Truncate(path, 1<<40)) }, false, 3},
		{"no folder", "", func() error { return os.Remove(s.folder) }, false, 3},
		{"a folder in its place", "not a regular file", func() error { return os.Mkdir(path, 0o700) }, true, 3},
		{"a file in the place of the folder", "not a directory", func() error {
			return errors.Join(os.Remove(s.folder), os.WriteFile(s.folder, nil, 0o600))
		}, true, 3},
		{"a full disk", "", func() error {
			return errors.Join(mount("size=4k"), os.WriteFile(path+".x", bytes.Repeat([]byte{1}, 4096), 0o600))
		}, true, 3},
		{"a read-only disk", "", func() error {
			return errors.Join(mount(""), write(whole), unix.Mount("", s.folder, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		}, true, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.reboot(t)
			must(t, errors.Join(os.RemoveAll(s.folder), os.Mkdir(s.folder, 0o700), c.make()))
			defer func() { _ = unix.Unmount(s.folder, 0) }() // most cases mount nothing
			s.begin(t)
			reach(t, s.Pods[2], stable, "pod-0")
			s.listed(t, c.lists)
			log := strings.Join(s.d.lines("all objects are listed"), "")
			if n := strings.Count(log, "\n"); n > 1 || !strings.Contains(log, c.reason) || (n == 0) != (c.reason == "") {
				t.Errorf("the log has no reason %q:\n%s", c.reason, log)
			}
			if !c.unwritable {
				s.awaitIdle(t)
				return
			}
			eventually(t, patience, func() error {
				if n := len(s.d.lines("Cannot write the snapshot")); n != 1 {
					return fmt.Errorf("%d failures of a write in the log, want 1:\n%s", n, s.d.LogTail(20))
				}
				return nil
			})
			m, err := s.d.scrape()
			must(t, err)
			lab.Same(t, 0.0, m["kubenftproxy_snapshot_timestamp_seconds"], "kubenftproxy_snapshot_timestamp_seconds")
		})
	}
}
