package nodeport

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// States, attributes and instructions of linux/inet_diag.h and net/tcp_states.h.
const (
	stateClose  = 7 // of a UDP socket: bound, not connected
	stateListen = 10

	attrBytecode = 1
	attrV6Only   = 11

	opPortAtLeast = 2
	opPortAtMost  = 3

	// requestLen and messageLen are the sizes of inet_diag_req_v2 and inet_diag_msg.
	requestLen = 56
	messageLen = 72
)

// maxReads is the number of attempts to list the sockets. A change of the sockets may interrupt the kernel's listing.
const maxReads = 3

// errAbsent means that the kernel cannot list sockets.
var errAbsent = errors.New("the kernel's modules tcp_diag and udp_diag are missing or cannot be loaded")

// Listening returns the TCP and UDP sockets of this network namespace that listen on a port of the range. The kernel
// skips all other sockets, so the cost depends on the number of listening sockets, not of connections. It needs no
// privilege.
func Listening(ports Range) (list []Socket, err error) {
	for _, p := range []inet.Protocol{inet.TCP, inet.UDP} {
		// Sockets on [::] may accept IPv4, so both families are always queried.
		for _, family := range inet.Families {
			if list, err = appendListening(list, family, p, ports); err != nil {
				return nil, fmt.Errorf("list sockets: %w", err)
			}
		}
	}
	return list, nil
}

// appendListening appends the sockets of one family and protocol. It does not use the library's request, which
// queries all states and drops the attributes of the answers.
func appendListening(list []Socket, family inet.Family, p inet.Protocol, ports Range) ([]Socket, error) {
	before := len(list)
	for range maxReads {
		list = list[:before]
		req := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
		req.AddRawData(request(family, p, ports))
		err := req.ExecuteIter(unix.NETLINK_INET_DIAG, nl.SOCK_DIAG_BY_FAMILY, func(msg []byte) bool {
			if s, ok := parse(msg, p); ok {
				list = append(list, s)
			}
			return true
		})
		switch {
		case errors.Is(err, netlink.ErrDumpInterrupted):
			continue
		case errors.Is(err, unix.ENOENT):
			err = errAbsent
		}
		return list, err
	}
	return nil, netlink.ErrDumpInterrupted
}

// request returns an inet_diag_req_v2 and a filter.
func request(family inet.Family, p inet.Protocol, ports Range) []byte {
	states := uint32(1 << stateListen)
	if p == inet.UDP {
		states = 1 << stateClose
	}
	b := make([]byte, requestLen, requestLen+unix.SizeofNlAttr+16)
	b[0], b[1] = family.Number(), uint8(p)
	binary.NativeEndian.PutUint32(b[4:], states)
	b = binary.NativeEndian.AppendUint16(b, unix.SizeofNlAttr+16)
	b = binary.NativeEndian.AppendUint16(b, attrBytecode)
	return appendFilter(b, ports)
}

// appendFilter appends a program of two instructions, which compare the local port with both ends of the range. After
// a match, the kernel goes on with the next instruction; otherwise it jumps beyond the end. A socket passes if the
// kernel stops exactly at the end.
func appendFilter(b []byte, ports Range) []byte {
	instruction := func(op uint8, port uint16, left uint16) {
		const size, beyond = 8, 4
		b = append(b, op, size)
		b = binary.NativeEndian.AppendUint16(b, left+beyond)
		b = append(b, 0, 0)
		b = binary.NativeEndian.AppendUint16(b, port)
	}
	instruction(opPortAtLeast, ports.First, 16)
	instruction(opPortAtMost, ports.Last, 8)
	return b
}

// parse reads an inet_diag_msg.
func parse(b []byte, p inet.Protocol) (s Socket, ok bool) {
	if len(b) < messageLen {
		return s, false
	}
	addr := netip.AddrFrom16([16]byte(b[8:24])).Unmap()
	if b[0] == inet.IPv4.Number() {
		addr = netip.AddrFrom4([4]byte(b[8:12]))
	}
	s = Socket{
		Protocol: p, Local: netip.AddrPortFrom(addr, binary.BigEndian.Uint16(b[4:])),
		Device: binary.NativeEndian.Uint32(b[40:]), Cookie: binary.NativeEndian.Uint64(b[44:]),
		Inode: binary.NativeEndian.Uint32(b[68:]),
	}
	attrs, err := nl.ParseRouteAttr(b[messageLen:])
	if err != nil {
		return s, false
	}
	for _, a := range attrs {
		if a.Attr.Type == attrV6Only && len(a.Value) > 0 {
			s.V6Only = a.Value[0] != 0
		}
	}
	return s, true
}

// OwnSockets returns the inodes of this process's sockets.
func OwnSockets() (map[uint32]struct{}, error) {
	const dir = "/proc/self/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list own sockets: %w", err)
	}
	own := map[uint32]struct{}{}
	for _, e := range entries {
		target, err := os.Readlink(dir + "/" + e.Name())
		if err != nil {
			continue // closed meanwhile
		}
		number, found := strings.CutPrefix(target, "socket:[")
		inode, err := strconv.ParseUint(strings.TrimSuffix(number, "]"), 10, 32)
		if found && err == nil {
			own[uint32(inode)] = struct{}{}
		}
	}
	return own, nil
}
