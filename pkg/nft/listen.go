package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Commit is what the kernel tells of a transaction.
type Commit struct {
	Generation uint32
	// PID and Program are those of the process that sent it; 0 and "" where the kernel doesn't say.
	PID     int
	Program string
}

// Author names who sent it, as a person would look for it.
func (c Commit) Author() string {
	if c.Program == "" {
		return "unknown"
	}
	return fmt.Sprintf("%s (pid %d)", c.Program, c.PID)
}

// Listener hears of every transaction while it is a member of the kernel's group for nftables, in the network namespace of the
// thread that opened it. A member makes every commit dearer, by about a microsecond for each element, because the
// kernel describes to it what is done; leave the group while a batch of one's own is sent.
type Listener struct {
	file *os.File
	fd   syscall.RawConn
	buf  []byte
}

// Listen opens a listener, which hears nothing before [Listener.Join].
func Listen() (*Listener, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	l := &Listener{file: os.NewFile(uintptr(fd), "nftables"), buf: make([]byte, 4096)}
	if l.fd, err = l.file.SyscallConn(); err == nil {
		err = l.setUp()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen to nftables: %w", err), l.Close())
	}
	return l, nil
}

func (l *Listener) setUp() error {
	filter, err := commitsOnly()
	if err != nil {
		return err
	}
	return l.control(func(fd int) error {
		program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
		if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program); err != nil {
			return fmt.Errorf("attach filter: %w", err)
		}
		return unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	})
}

// commitsOnly is a socket filter that lets through what ends a transaction (NFT_MSG_NEWGEN), and nothing of what was in it.
func commitsOnly() ([]unix.SockFilter, error) {
	const typeOffset, accept = 4, 0xffff
	want := uint32(unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWGEN)
	// A filter loads in network byte order; the header is in that of the host.
	swapped := uint32(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, uint16(want))))
	raw, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: typeOffset, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: swapped, SkipTrue: 1},
		bpf.RetConstant{Val: accept},
		bpf.RetConstant{Val: 0},
	})
	filter := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		filter[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	return filter, err
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

// Next waits for the next transaction. Where the kernel had to drop some, it returns the zero Commit.
func (l *Listener) Next() (Commit, error) {
	for {
		n, err := l.file.Read(l.buf)
		switch {
		case errors.Is(err, unix.ENOBUFS):
			return Commit{}, nil
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return Commit{}, fmt.Errorf("listen to nftables: %w", err)
		}
		var c Commit
		heard := false
		forEachMessage(l.buf[:n], func(h header, payload []byte) {
			if h.typ == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN && len(payload) >= 4 {
				c, heard = parseCommit(payload[4:]), true
			}
		})
		if heard {
			return c, nil
		}
	}
}

func parseCommit(b []byte) (c Commit) {
	attrs(b, func(typ uint16, v []byte) {
		switch typ {
		case unix.NFTA_GEN_ID:
			c.Generation = be32(v)
		case unix.NFTA_GEN_PROC_PID:
			c.PID = int(be32(v))
		case unix.NFTA_GEN_PROC_NAME:
			c.Program = text(v)
		}
	})
	return c
}

// Close ends it, and a [Listener.Next] that is waiting.
func (l *Listener) Close() error { return l.file.Close() }
