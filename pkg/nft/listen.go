package nft

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/netlink"
)

// Commit is what the kernel tells of a transaction.
type Commit struct {
	Generation uint32
	// Port is the number of the socket that sent it, see [Conn.Port].
	Port uint32
	// PID and Program are those of the process that sent it; 0 and "" where the kernel doesn't say.
	PID     int
	Program string
	// Touched is what it did to the table that is listened for, an entry for each kind of change and object.
	Touched []Touch
	// Lost says that the kernel had to drop something before this: there were more commits, or more was touched.
	Lost bool
}

// Touch is a change of something in a table.
type Touch struct {
	Family Family
	// Change says what was done, as "add rule to"; Name is the set or chain concerned, or the table itself.
	Change, Name string
	// Elements says that the set itself is as it was.
	Elements bool
}

// String describes the change.
func (t Touch) String() string {
	return fmt.Sprintf("%s %s %s", t.Family, t.Change, t.Name)
}

// Author is the process that sent a commit; zero where the kernel does not say.
type Author struct {
	Program string
	PID     int
}

// Author returns the process that sent it.
func (c Commit) Author() Author { return Author{c.Program, c.PID} }

// String names the process as a person would look for it.
func (a Author) String() string {
	if a.Program == "" {
		return "unknown"
	}
	return fmt.Sprintf("%s (pid %d)", a.Program, a.PID)
}

// Listener hears of every transaction while it is a member of the kernel's group for nftables, in the network namespace of the
// thread that opened it. A member makes every commit dearer, by about a microsecond for each element, because the
// kernel describes to it what is done; leave the group while a batch of one's own is sent.
type Listener struct {
	file  *os.File
	fd    syscall.RawConn
	buf   []byte
	table string
	// next is what is known of the transaction whose end hasn't been heard of yet.
	next Commit
}

// Listen opens a listener, which hears nothing before [Listener.Join]. It hears what is done to tables of a name, and of
// everything else only that something was done.
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
		// An overrun is only dear, not wrong.
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

// Join makes it hear of what is committed from now on.
func (l *Listener) Join() error { return l.membership(unix.NETLINK_ADD_MEMBERSHIP) }

// Leave makes it hear nothing more. What it has heard already is still there for [Listener.Next].
func (l *Listener) Leave() error { return l.membership(unix.NETLINK_DROP_MEMBERSHIP) }

func (l *Listener) membership(option int) error {
	return l.control(func(fd int) error {
		return os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_NETLINK, option, unix.NFNLGRP_NFTABLES))
	})
}

// Next waits for the end of the next transaction. Where the kernel had to drop something, it returns at once with
// [Commit.Lost], and no generation.
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
		heard := false
		for m, err := range netlink.Messages(l.buf[:n]) {
			switch {
			case err != nil: // the rest of a reply is cut off
			case m.Type>>8 != unix.NFNL_SUBSYS_NFTABLES:
			case m.Type&0xff == unix.NFT_MSG_NEWGEN:
				parseCommit(m.Object(), &l.next)
				l.next.Port, heard = m.Port, true
			default:
				l.touched(m)
			}
		}
		if heard {
			c := l.next
			l.next = Commit{}
			c.PID = processOf(c.PID, c.Program)
			return c, nil
		}
	}
}

// touched notes a change of the table; there may be a million of elements, so each kind of change is noted once.
func (l *Listener) touched(m netlink.Message) {
	var table, name string
	nameAttr := uint16(unix.NFTA_SET_NAME) // with elements, rules and objects it has the same number
	kind := m.Type & 0xff
	if kind == unix.NFT_MSG_NEWCHAIN || kind == unix.NFT_MSG_DELCHAIN {
		nameAttr = unix.NFTA_CHAIN_NAME
	}
	ofTable := kind == unix.NFT_MSG_NEWTABLE || kind == unix.NFT_MSG_DELTABLE
	for typ, v := range netlink.Attributes(m.Object()) {
		switch {
		case typ == unix.NFTA_SET_TABLE: // the first of every kind of object
			table = netlink.Text(v)
		case typ == nameAttr && !ofTable:
			name = netlink.Text(v)
		}
	}
	if ofTable {
		name = table
	}
	family := Family(m.Family())
	if table != l.table || family != IPv4 && family != IPv6 {
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

// processOf turns the number that the kernel tells, which is that of a thread, into the process's, by which a person finds it. Where
// that can't be known, as from inside of a container, it stays what it is.
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

// Close ends it, and a [Listener.Next] that is waiting.
func (l *Listener) Close() error { return l.file.Close() }
