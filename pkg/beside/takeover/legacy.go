package takeover

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// protocol is IPv4 or IPv6, for each of which iptables-legacy has tables.
type protocol struct {
	command string // its name, without the suffix -save or -restore
	names   string // file of /proc/net with the names of the existing tables
	family  int
	level   int
	layout
}

var protocols = []protocol{
	{"iptables-legacy", "ip_tables_names", unix.AF_INET, unix.SOL_IP, layout4},
	{"ip6tables-legacy", "ip6_tables_names", unix.AF_INET6, unix.SOL_IPV6, layout6},
}

// tables returns the existing tables in which kube-proxy may have rules. Without this check, a request for a missing
// table would create it and load a module.
func (p *protocol) tables() (list []string, err error) {
	names, err := os.ReadFile(filepath.Join("/proc/thread-self/net", p.names))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list tables of %s: %w", p.command, err)
	}
	existing := strings.Fields(string(names))
	for _, t := range tables {
		if slices.Contains(existing, t.name) {
			list = append(list, t.name)
		}
	}
	return list, nil
}

// countLegacy counts kube-proxy's chains in the tables of iptables-legacy.
func countLegacy() (n int, err error) {
	err = readLegacy(nil, func(_ string, c *content) {
		var names []string
		for _, ch := range c.chains {
			names = append(names, ch.name)
		}
		n += count(c.table, names)
	})
	return n, err
}

// removeLegacy removes kube-proxy's chains from the tables of iptables-legacy, with one change for each table.
func removeLegacy(note *notes) error {
	return eachLegacy(func(s *xtables, table string) error {
		var done change
		err := again(func() (err error) {
			done, err = s.clear(table)
			return err
		})
		if err != nil {
			return fmt.Errorf("remove kube-proxy's chains from table %s of %s; run on the node: %s: %w",
				table, s.command, s.byHand(table), err)
		}
		note.chains(done)
		return nil
	})
}

// byHand returns a shell command with which an administrator can remove kube-proxy's chains from a table.
func (p *protocol) byHand(table string) string {
	var names []string
	for _, t := range tables {
		if t.name == table {
			names = append(names, t.chains...)
		}
	}
	pattern := strings.Join(names, "|")
	if table == "nat" {
		for _, prefix := range perService {
			pattern += "|" + prefix + "[A-Z2-7]+"
		}
	}
	return fmt.Sprintf("%s-save -c -t %s | grep -vE '^:(%s) |-A (%s) |-j (%s)$' | %s-restore -c", p.command, table,
		pattern, pattern, pattern,
		p.command)
}

// readLegacy calls f with each existing table of both protocols, or only with the named ones, and with the protocol's
// command. It does not read missing tables, because this would create them.
func readLegacy(only []string, f func(command string, c *content)) error {
	return eachLegacy(func(s *xtables, table string) error {
		if only != nil && !slices.Contains(only, table) {
			return nil
		}
		_, c, err := s.content(table)
		if err == nil {
			f(s.command, c)
		}
		return err
	})
}

// eachLegacy calls f for each existing table of both protocols. It continues after an error, and returns all errors.
func eachLegacy(f func(*xtables, string) error) error {
	var errs []error
	for _, p := range protocols {
		list, err := p.tables()
		errs = append(errs, err)
		if len(list) == 0 {
			continue
		}
		s, err := openXtables(p)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, table := range list {
			errs = append(errs, f(s, table))
		}
		errs = append(errs, s.close())
	}
	return errors.Join(errs...)
}

// xtables is a socket for the kernel interface of iptables-legacy. The kernel accepts any IP socket. A UDP socket
// needs no capability except CAP_NET_ADMIN.
type xtables struct {
	protocol
	fd int
}

func openXtables(p protocol) (*xtables, error) {
	if strconv.IntSize != 64 {
		return nil, fmt.Errorf("open tables of %s: the layout of this platform is unknown", p.command)
	}
	fd, err := unix.Socket(p.family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open tables of %s: %w", p.command, err)
	}
	return &xtables{p, fd}, nil
}

func (s *xtables) close() error { return os.NewSyscallError("close", unix.Close(s.fd)) }

// The socket options of iptables (linux/netfilter_ipv4/ip_tables.h). ip6tables has the same.
const (
	setReplace     = 64
	setAddCounters = 65
	getInfo        = 64
	getEntries     = 65
)

// longestTableName is the size of the field with a table's name.
const longestTableName = 32

func (s *xtables) get(option int, buf []byte) error {
	size := uint32(len(buf))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(s.fd), uintptr(s.level), uintptr(option),
		uintptr(unsafe.Pointer(unsafe.SliceData(buf))), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

func (s *xtables) set(option int, buf []byte) error {
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(s.fd), uintptr(s.level), uintptr(option),
		uintptr(unsafe.Pointer(unsafe.SliceData(buf))), uintptr(len(buf)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// read reads a table. It returns EAGAIN if, at each attempt, the table has changed between the request for its size
// and the request for its content.
func (s *xtables) read(table string) (b *blob, err error) {
	err = again(func() (err error) {
		b, err = s.readOnce(table)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read table %s of %s: %w", table, s.command, err)
	}
	return b, nil
}

// content reads and parses a table.
func (s *xtables) content(table string) (*blob, *content, error) {
	b, err := s.read(table)
	if err != nil {
		return nil, nil, err
	}
	c, err := b.parse(table)
	if err != nil {
		return nil, nil, fmt.Errorf("read table %s of %s: %w", table, s.command, err)
	}
	return b, c, nil
}

func (s *xtables) readOnce(table string) (*blob, error) {
	b := &blob{layout: s.layout}
	info := make([]byte, longestTableName+binary.Size(b.tableInfo))
	copy(info, table)
	if err := s.get(getInfo, info); err != nil {
		return nil, err
	}
	if _, err := binary.Decode(info[longestTableName:], binary.NativeEndian, &b.tableInfo); err != nil {
		return nil, err
	}
	// struct ipt_get_entries: name, size, padding to eight bytes, entries.
	const header = longestTableName + 8
	buf := make([]byte, header+int(b.EntrySize))
	copy(buf, table)
	binary.NativeEndian.PutUint32(buf[longestTableName:], b.EntrySize)
	if err := s.get(getEntries, buf); err != nil {
		return nil, err
	}
	b.entries = buf[header:]
	return b, nil
}

// clear removes kube-proxy's chains and rules from a table in one change. The remaining rules keep their counters.
func (s *xtables) clear(table string) (change, error) {
	done := change{table: fmt.Sprintf("table %s of %s", table, s.command)}
	unlock, err := lockXtables(lockFile)
	if err != nil {
		return done, err
	}
	defer unlock()
	old, c, err := s.content(table)
	if err != nil {
		return done, err
	}
	done.removal = c.removal()
	if done.empty() {
		return done, nil
	}
	b, from, err := old.without(c, &done.removal)
	if err != nil {
		return done, err
	}
	counted, err := s.replace(table, b, len(c.entries))
	if err != nil {
		return done, err
	}
	return done, s.addCounters(table, counted, from)
}

// replace replaces a table and returns the counters of the old entries. It returns EAGAIN if the number of entries
// has changed.
func (s *xtables) replace(table string, b *blob, entries int) ([]byte, error) {
	counted := make([]byte, entries*counterSize)
	// struct ipt_replace: name, valid_hooks, num_entries, size, hook_entry, underflow, num_counters, counters, entries.
	buf := make([]byte, longestTableName, longestTableName+64+len(b.entries))
	copy(buf, table)
	for _, v := range []uint32{b.ValidHooks, b.NumEntries, b.EntrySize} {
		buf = binary.NativeEndian.AppendUint32(buf, v)
	}
	for _, list := range [][5]uint32{b.HookEntry, b.Underflow} {
		for _, v := range list {
			buf = binary.NativeEndian.AppendUint32(buf, v)
		}
	}
	buf = binary.NativeEndian.AppendUint32(buf, uint32(entries))
	// The address stays valid: objects on the heap do not move, and the slice is returned.
	buf = binary.NativeEndian.AppendUint64(buf, uint64(uintptr(unsafe.Pointer(unsafe.SliceData(counted)))))
	if err := s.set(setReplace, append(buf, b.entries...)); err != nil {
		return nil, fmt.Errorf("replace table: %w", err)
	}
	return counted, nil
}

// addCounters adds the old counters to the entries of a replaced table, whose counters start at 0.
func (s *xtables) addCounters(table string, counted []byte, from []int) error {
	// struct xt_counters_info: name, num_counters, padding to eight bytes, counters.
	buf := make([]byte, longestTableName+8, longestTableName+8+len(from)*counterSize)
	copy(buf, table)
	binary.NativeEndian.PutUint32(buf[longestTableName:], uint32(len(from)))
	for _, i := range from {
		buf = append(buf, counted[i*counterSize:(i+1)*counterSize]...)
	}
	if err := s.set(setAddCounters, buf); err != nil {
		return fmt.Errorf("set counters: %w", err)
	}
	return nil
}

// lockFile is the file that iptables-legacy locks while it changes a table. Both programs read a whole table and
// write it again. Without the lock, one of two simultaneous changes would be lost.
const lockFile = "/run/xtables.lock"

// lockWait is the longest wait for the lock: iptables-restore with very many rules takes seconds.
const lockWait = 10 * time.Second

// lockXtables waits for the lock. If it cannot open or create the file, for example in a read-only container without
// the node's file, it returns without the lock and without an error.
func lockXtables(name string) (unlock func(), err error) {
	f, err := os.OpenFile(name, os.O_RDONLY|os.O_CREATE, 0o600)
	if err != nil {
		return func() {}, nil
	}
	for end := time.Now().Add(lockWait); ; time.Sleep(20 * time.Millisecond) {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			return func() { f.Close() }, nil
		}
		if time.Now().After(end) {
			f.Close()
			return nil, fmt.Errorf("lock %s, which another program holds: %w", name, err)
		}
	}
}
