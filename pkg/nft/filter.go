package nft

import (
	"encoding/binary"
	"errors"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

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
