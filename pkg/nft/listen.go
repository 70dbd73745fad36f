package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/netlink"
)

// Commit is a transaction that the kernel announced.
type Commit struct {
	Generation uint32
	// PID and Program identify the sender's process; 0 and "" if the kernel does not report them.
	PID     int
	Program string
	// Touched are the changes of tables of the given name, one for each kind of change and object.
	Touched []Touch
	// Lost is true if the kernel dropped announcements before this one: commits or changes are missing.
	Lost bool
}

// Touch is a change of an object in a table.
type Touch struct {
	Family inet.Family
	// Change is the kind of change, such as "add rule to". Name is the set or chain, or the table itself.
	Change, Name string
	// Elements is true if only elements of the set changed.
	Elements bool
}

// String describes the change.
func (t Touch) String() string {
	return fmt.Sprintf("%s %s %s", t.Family.Keyword(), t.Change, t.Name)
}

// Author is the process that sent a commit. It is zero if the kernel does not report it.
type Author struct {
	Program string
	PID     int
}

// Author returns the process that sent the commit.
func (c Commit) Author() Author { return Author{c.Program, c.PID} }

// String returns the process in a form that a user can look up.
func (a Author) String() string {
	if a.Program == "" {
		return "unknown"
	}
	return fmt.Sprintf("%s (pid %d)", a.Program, a.PID)
}

// Listener receives the announcements of all transactions in the network namespace of the thread that opened it, while
// it is a member of the kernel's nftables group. While the group has a member, each commit takes about a microsecond
// longer for each element, because the kernel describes every change. So leave the group before each commit of this
// program, and join it again afterwards.
type Listener struct {
	file  *os.File
	fd    syscall.RawConn
	buf   []byte
	table string
	// next is the current transaction, whose end was not received yet.
	next Commit
}

// Listen opens a listener, which receives announcements after [Listener.Join]: the changes of tables with the given
// name, and the end of every transaction.
func Listen(table string) (*Listener, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	l := &Listener{file: os.NewFile(uintptr(fd), "nftables"), buf: make([]byte, 64<<10), table: table}
	if l.fd, err = l.file.SyscallConn(); err == nil {
		err = l.setUp()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen to nftables: %w", err), l.Close())
	}
	return l, nil
}

func (l *Listener) setUp() error {
	return l.control(func(fd int) error {
		// If this fails, the queue overruns sooner, which is expensive but harmless.
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 1<<20)
		if err := attachFilter(fd, l.table); err != nil {
			return fmt.Errorf("attach filter: %w", err)
		}
		return unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	})
}

func (l *Listener) control(f func(fd int) error) error {
	var err error
	if outer := l.fd.Control(func(fd uintptr) { err = f(int(fd)) }); outer != nil {
		return outer
	}
	return err
}

// Join makes the listener a member of the kernel's nftables group.
func (l *Listener) Join() error { return l.membership(unix.NETLINK_ADD_MEMBERSHIP) }

// Leave ends the membership. [Listener.Next] still returns announcements that arrived before.
func (l *Listener) Leave() error { return l.membership(unix.NETLINK_DROP_MEMBERSHIP) }

func (l *Listener) membership(option int) error {
	return l.control(func(fd int) error {
		return os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_NETLINK, option, unix.NFNLGRP_NFTABLES))
	})
}

// Next waits for the end of the next transaction. If the kernel dropped announcements, Next returns at once with
// [Commit.Lost] and no generation.
func (l *Listener) Next() (Commit, error) {
	for {
		n, err := l.file.Read(l.buf)
		switch {
		case errors.Is(err, unix.ENOBUFS):
			return Commit{Lost: true}, nil
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return Commit{}, fmt.Errorf("listen to nftables: %w", err)
		}
		complete := false
		for m, err := range netlink.Messages(l.buf[:n]) {
			switch {
			case err != nil: // the rest of a message is missing
			case m.Type>>8 != unix.NFNL_SUBSYS_NFTABLES:
			case m.Type&0xff == unix.NFT_MSG_NEWGEN:
				parseCommit(m.Object(), &l.next)
				complete = true
			default:
				l.touched(m)
			}
		}
		if complete {
			c := l.next
			l.next = Commit{}
			c.PID = processOf(c.PID, c.Program)
			return c, nil
		}
	}
}

// touched records a change of the table. It records each kind of change of an object only once: a commit may change a
// million elements.
func (l *Listener) touched(m netlink.Message) {
	var table, name string
	nameAttr := uint16(unix.NFTA_SET_NAME) // the same number for elements, rules and objects
	kind := m.Type & 0xff
	if kind == unix.NFT_MSG_NEWCHAIN || kind == unix.NFT_MSG_DELCHAIN {
		nameAttr = unix.NFTA_CHAIN_NAME
	}
	ofTable := kind == unix.NFT_MSG_NEWTABLE || kind == unix.NFT_MSG_DELTABLE
	for typ, v := range netlink.Attributes(m.Object()) {
		switch {
		case typ == unix.NFTA_SET_TABLE: // the first attribute of every kind of object
			table = netlink.Text(v)
		case typ == nameAttr && !ofTable:
			name = netlink.Text(v)
		}
	}
	if ofTable {
		name = table
	}
	family, known := inet.FamilyOfNumber(m.Family())
	if table != l.table || !known {
		return
	}
	t := Touch{
		Family: family, Change: messageName(m.Type), Name: name,
		Elements: kind == unix.NFT_MSG_NEWSETELEM || kind == unix.NFT_MSG_DELSETELEM,
	}
	if !slices.Contains(l.next.Touched, t) {
		l.next.Touched = append(l.next.Touched, t)
	}
}

func parseCommit(b []byte, c *Commit) {
	for typ, v := range netlink.Attributes(b) {
		switch typ {
		case unix.NFTA_GEN_ID:
			c.Generation = netlink.Uint32(v)
		case unix.NFTA_GEN_PROC_PID:
			c.PID = int(netlink.Uint32(v))
		case unix.NFTA_GEN_PROC_NAME:
			c.Program = netlink.Text(v)
		}
	}
}

// processOf returns the process ID for the thread ID that the kernel reports. If the process is not visible, for
// example from inside a container, processOf returns the thread ID.
func processOf(pid int, program string) int {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return pid
	}
	var name string
	process := pid
	for line := range strings.Lines(string(status)) {
		field, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch value = strings.TrimSpace(value); field {
		case "Name":
			name = value
		case "Tgid":
			if n, err := strconv.Atoi(value); err == nil {
				process = n
			}
		}
	}
	if name != program {
		return pid
	}
	return process
}

// Close closes the listener. A waiting [Listener.Next] returns an error.
func (l *Listener) Close() error { return l.file.Close() }

// attachFilter makes a socket accept the end of each transaction (NFT_MSG_NEWGEN) and messages about tables of one
// name. The filter drops messages about all other tables, because millions of their elements would overrun the socket's
// queue.
func attachFilter(fd int, table string) error {
	// The kernel packs some dozens of messages into one buffer. A filter cannot loop, so its size grows with the number
	// of messages. Kernels before 6.8 limit the size to 20 KiB.
	var err error
	for _, messages := range []int{64, 32, 16} {
		var filter []unix.SockFilter
		if filter, err = filterFor(table, messages); err != nil {
			return err
		}
		program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
		err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program)
		if !errors.Is(err, unix.ENOMEM) {
			return err
		}
	}
	return err
}

// filterFor returns a socket filter that examines up to the given number of messages in a buffer. It accepts a buffer
// with more messages. It drops a buffer in which no message matches: the kernel drops a buffer when the filter loads
// beyond its end.
func filterFor(table string, messages int) ([]unix.SockFilter, error) {
	const (
		typeOffset = 4
		nameOffset = 24 // headers of netlink, nfnetlink and the first attribute, which is the table's name
		accept     = 1 << 20
	)
	low, high := lowBytes()
	// A filter loads in network byte order. The header is in host byte order.
	typ := binary.NativeEndian.AppendUint16(nil, unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN)
	newgen := uint32(binary.BigEndian.Uint16(typ))
	program := []bpf.Instruction{
		bpf.LoadAbsolute{Off: typeOffset, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: newgen, SkipTrue: 1},
		bpf.RetConstant{Val: accept},
		bpf.LoadConstant{Dst: bpf.RegX, Val: 0},
	}
	part, offset := sample(table)
	for range messages {
		program = append(program,
			bpf.LoadIndirect{Off: nameOffset + offset, Size: 4},
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: part, SkipTrue: 1},
			bpf.RetConstant{Val: accept},
			// X += the message's length, aligned to four bytes
			bpf.LoadIndirect{Off: high, Size: 1},
			bpf.ALUOpConstant{Op: bpf.ALUOpShiftLeft, Val: 8},
			bpf.ALUOpX{Op: bpf.ALUOpAdd},
			bpf.StoreScratch{Src: bpf.RegA, N: 0},
			bpf.LoadIndirect{Off: low, Size: 1},
			bpf.LoadScratch{Dst: bpf.RegX, N: 0},
			bpf.ALUOpX{Op: bpf.ALUOpAdd},
			bpf.ALUOpConstant{Op: bpf.ALUOpAdd, Val: 3},
			bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: ^uint32(3)},
			bpf.TAX{},
		)
	}
	raw, err := bpf.Assemble(append(program, bpf.RetConstant{Val: accept}))
	filter := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		filter[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	return filter, err
}

// sample returns four bytes from the middle of a name, and their offset. These bytes are rare in other names. The
// filter compares only these bytes; the listener compares the whole name.
func sample(name string) (part, offset uint32) {
	b := append([]byte(name), 0, 0, 0, 0)
	offset = uint32(len(name)/2) &^ 3
	return binary.BigEndian.Uint32(b[offset:]), offset
}

// lowBytes returns the offsets of the lowest and second lowest byte of a message's length.
func lowBytes() (low, high uint32) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		return 0, 1
	}
	return 3, 2
}
