package plan

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/balance"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// Each function in this file returns the expressions of the nft text in its comment. The functions are the words of a
// rule.

// reg is the first register (NFT_REG32_00). The next registers follow in steps of 32 bits.
const reg = unix.NFT_REG32_00

// rule joins words into a rule. nft shows the comment, and a start compares the comments of the kernel's rules with the
// plan.
func rule(comment string, words ...[]expr.Any) nft.Rule {
	var r nft.Rule
	r.Comment = comment
	for _, w := range words {
		r.Exprs = append(r.Exprs, w...)
	}
	return r
}

// test: OP VALUE, of loaded bytes
func test(op expr.CmpOp, value ...byte) expr.Any {
	return &expr.Cmp{Op: op, Register: reg, Data: value}
}

// and: & MASK, of loaded bytes
func and(mask ...byte) expr.Any {
	return &expr.Bitwise{
		SourceRegister: reg, DestRegister: reg, Len: uint32(len(mask)), Mask: mask, Xor: make([]byte, len(mask)),
	}
}

// network loads a byte of the network header, and transport a byte of the transport header.
func network(offset uint32) expr.Any   { return nft.Network(offset, 1).Load(reg) }
func transport(offset uint32) expr.Any { return nft.Transport(offset, 1).Load(reg) }

// key loads fields in the layout of nft's concatenations: each field takes whole registers.
func key(fields ...nft.Field) []expr.Any {
	var out []expr.Any
	at := uint32(reg)
	for _, f := range fields {
		out = append(out, f.Load(at))
		at += uint32(f.Registers())
	}
	return out
}

// registers returns the number of 32-bit registers that a key takes.
func registers(fields []nft.Field) uint32 {
	var n uint32
	for _, f := range fields {
		n += uint32(f.Registers())
	}
	return n
}

// clientFields are the fields of the client in a packet.
func clientFields(f inet.Family) []nft.Field { return []nft.Field{nft.SrcAddr(f), nft.SrcPort()} }

// indexed: KEY . numgen random mod n, or KEY . jhash ip saddr . th sport mod n seed S, or KEY . jhash ip saddr & MASK
// mod n seed S
func indexed(f inet.Family, fields []nft.Field, t table) []expr.Any {
	return indexedBy(clientFields(f), f, fields, t, forMap)
}

// nft 1.0.6 to 1.1.7 skip as many registers before the key of a hash, in the key of a map or of a set. Any other
// registers would work, but the rules of a listing that nft has loaded would differ.
const forMap, forSet = 4, 0

// indexedBy does the same with a client whose address and port are in other fields.
func indexedBy(client []nft.Field, f inet.Family, fields []nft.Field, t table, skipped uint32) []expr.Any {
	words, index := key(fields...), reg+registers(fields)
	if t.by == (selector{}) {
		return append(words, &expr.Numgen{Register: index, Modulus: t.size, Type: unix.NFT_NG_RANDOM})
	}
	from, address := index+1+skipped, client[:1]
	words = append(words, client[0].Load(from))
	if t.by.key == balance.Flow {
		words = append(words, client[1].Load(from+registers(address)))
		address = client
	} else if n := int(t.by.prefix); n < f.AddrLen()*8 {
		words = append(words, masked(from, f.AddrLen(), n))
	}
	return append(words, &expr.Hash{
		SourceRegister: from, DestRegister: index, Length: 4 * registers(address), Modulus: t.size, Seed: balance.Seed,
		Type: expr.HashTypeJenkins,
	})
}

// masked: & MASK, of a register with the address of a prefix
func masked(at uint32, length, prefix int) expr.Any {
	mask := make([]byte, length)
	for i := range prefix {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return &expr.Bitwise{SourceRegister: at, DestRegister: at, Len: uint32(length), Mask: mask, Xor: make([]byte, length)}
}

// lookup: KEY map @set, with the result in the first register
func lookup(s *nft.Set) expr.Any {
	return &expr.Lookup{SourceRegister: reg, DestRegister: reg, IsDestRegSet: true, SetName: s.Name}
}

// in: KEY @set, or KEY != @set
func in(s *nft.Set, fields []nft.Field, negate bool) []expr.Any {
	return append(key(fields...), loadedIn(s, negate))
}

// loadedIn does the same with a KEY that earlier words have loaded.
func loadedIn(s *nft.Set, negate bool) expr.Any {
	return &expr.Lookup{SourceRegister: reg, SetName: s.Name, Invert: negate}
}

// setPriority: meta priority set KEY map @set
func setPriority(keyWords []expr.Any, s *nft.Set) []expr.Any {
	return append(keyWords, lookup(s), &expr.Meta{Key: expr.MetaKeyPRIORITY, SourceRegister: true, Register: reg})
}

// setPriorityTo: meta priority set VALUE
func setPriorityTo(value uint32) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: reg, Data: word(value)},
		&expr.Meta{Key: expr.MetaKeyPRIORITY, SourceRegister: true, Register: reg},
	}
}

// keepBits: meta priority set meta priority & mask
func keepBits(mask uint32) []expr.Any {
	return append(priorityBits(reg, mask), &expr.Meta{Key: expr.MetaKeyPRIORITY, SourceRegister: true, Register: reg})
}

// dispatch: meta priority & mask vmap @dispatch
func dispatch(mask uint32, s *nft.Set) []expr.Any {
	return append(priorityBits(reg, mask),
		&expr.Lookup{SourceRegister: reg, DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true, SetName: s.Name})
}

// dnat: dnat ip to KEY map @set
func dnat(f inet.Family, keyWords []expr.Any, s *nft.Set) []expr.Any {
	port := uint32(reg + f.AddrLen()/4)
	return append(keyWords, lookup(s), &expr.NAT{
		Type: expr.NATTypeDestNAT, Family: uint32(f.Number()),
		RegAddrMin: reg, RegAddrMax: reg, RegProtoMin: port, RegProtoMax: port, Specified: true,
	})
}

// markPacket: meta mark set meta mark | bit
func markPacket(bit uint32) []expr.Any { return changeMark(^bit, bit) }

// unmarkPacket: meta mark & bit == bit meta mark set meta mark ^ bit
func unmarkPacket(bit uint32) []expr.Any {
	isMarked := []expr.Any{nft.Mark().Load(reg), and(word(bit)...), test(expr.CmpOpEq, word(bit)...)}
	return append(isMarked, changeMark(^uint32(0), bit)...)
}

func changeMark(mask, xor uint32) []expr.Any {
	return []expr.Any{
		nft.Mark().Load(reg),
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: word(mask), Xor: word(xor)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: reg},
	}
}

func word(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// priorityBits loads meta priority & mask into a register.
func priorityBits(at, mask uint32) []expr.Any {
	return []expr.Any{
		nft.Priority().Load(at),
		&expr.Bitwise{SourceRegister: at, DestRegister: at, Len: 4, Mask: word(mask), Xor: word(0)},
	}
}

// hasBits: meta priority & mask != none
func hasBits(mask uint32) []expr.Any {
	return append(priorityBits(reg, mask), test(expr.CmpOpNeq, word(0)...))
}

// hasNoBits: meta priority & mask == none
func hasNoBits(mask uint32) []expr.Any {
	return append(priorityBits(reg, mask), test(expr.CmpOpEq, word(0)...))
}

// hasRoute: meta priority & 0:700 == ROUTE, of a word with a direct or affinity class
func hasRoute(r route) []expr.Any {
	return append(priorityBits(reg, routeBits), test(expr.CmpOpEq, word(r.bits())...))
}

// remember: update @affinity { meta priority & ffff:0 . ip saddr timeout T : meta priority }, or the same with delete,
// which also needs the data register
func remember(s *nft.Set, saddr nft.Field, op uint32, e expr.Dynset) []expr.Any {
	words := append(priorityBits(reg, affineBits), saddr.Load(reg+1))
	data := reg + 1 + uint32(saddr.Registers())
	e.SrcRegKey, e.SrcRegData, e.SetName, e.Operation = reg, data, s.Name, op
	return append(words, nft.Priority().Load(data), &e)
}

// enter: update @set { FIELD timeout T }, or without a timeout if T is 0. A set with counters counts the packet.
func enter(s *nft.Set, f nft.Field, timeout time.Duration) []expr.Any {
	return append(key(f), &expr.Dynset{
		SrcRegKey: reg, SetName: s.Name, Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: timeout,
	})
}

// dynsetDelete is NFT_DYNSET_OP_DELETE.
const dynsetDelete = 2

// masquerade: masquerade fully-random
func masquerade() []expr.Any { return []expr.Any{&expr.Masq{FullyRandom: true}} }

// dnatted: ct status dnat
func dnatted() []expr.Any {
	const ipsDstNAT = 1 << 5
	return inConntrack(expr.CtKeySTATUS, ipsDstNAT, expr.CmpOpNeq)
}

// related: ct state related, or with CmpOpEq: ct state & related == 0. The kernel sends the reset that refuses a
// connection of this node by the output hook, as a related packet without a translation.
func related(op expr.CmpOp) []expr.Any { return inState(stateRelated, op) }

// Bits of the states of connections.
const (
	stateInvalid = 1 << 0
	stateRelated = 1 << 2
	stateNew     = 1 << 3
)

// inState: ct state STATE, or with CmpOpEq: ct state & STATE == 0
func inState(bit uint32, op expr.CmpOp) []expr.Any { return inConntrack(expr.CtKeySTATE, bit, op) }

func inConntrack(field expr.CtKey, bit uint32, op expr.CmpOp) []expr.Any {
	return []expr.Any{&expr.Ct{Key: field, Register: reg}, and(word(bit)...), test(op, word(0)...)}
}

// sourceIsThisNode: fib saddr type local, or fib saddr type != local
func sourceIsThisNode(op expr.CmpOp) []expr.Any {
	return addressType(&expr.Fib{Register: reg, ResultADDRTYPE: true, FlagSADDR: true}, op)
}

// destinationIsThisNode: fib daddr type local, or fib daddr type != local
func destinationIsThisNode(op expr.CmpOp) []expr.Any {
	return addressType(&expr.Fib{Register: reg, ResultADDRTYPE: true, FlagDADDR: true}, op)
}

func addressType(fib *expr.Fib, op expr.CmpOp) []expr.Any {
	return []expr.Any{fib, test(op, word(unix.RTN_LOCAL)...)}
}

// protocol: meta l4proto P
func protocol(p inet.Protocol) []expr.Any {
	return append(key(nft.L4Proto()), test(expr.CmpOpEq, uint8(p)))
}

// notProtocol: meta l4proto != P
func notProtocol(p inet.Protocol) []expr.Any {
	return append(key(nft.L4Proto()), test(expr.CmpOpNeq, uint8(p)))
}

// address: FIELD P, or FIELD != P
func address(f nft.Field, op expr.CmpOp, p netip.Prefix) []expr.Any {
	words := key(f)
	addr := p.Masked().Addr().AsSlice()
	if p.Bits() < p.Addr().BitLen() {
		words = append(words, masked(reg, len(addr), p.Bits()))
	}
	return append(words, test(op, addr...))
}

// inputInterface: iifname "NAME", or with a prefix iifname "NAME*"
func inputInterface(op expr.CmpOp, name string, prefix bool) []expr.Any {
	data := []byte(name)
	if !prefix {
		const ifNameSize = 16
		data = append(data, bytes.Repeat([]byte{0}, ifNameSize-len(name))...)
	}
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: reg}, test(op, data...)}
}

// marked: meta mark != 0
func marked() []expr.Any {
	return append(key(nft.Mark()), test(expr.CmpOpNeq, word(0)...))
}

// notForwarded: fib daddr . mark oif missing
func notForwarded() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: reg, ResultOIF: true, FlagDADDR: true, FlagMARK: true, FlagPRESENT: true},
		test(expr.CmpOpEq, word(0)...),
	}
}

// typeOfService: @nh,8,8 & 0x18 == VALUE
func typeOfService(value byte) []expr.Any {
	return []expr.Any{network(1), and(0x18), test(expr.CmpOpEq, value)}
}

// withoutSYN: tcp flags & syn == 0
func withoutSYN() []expr.Any {
	const flags, syn = 13, 0x02
	return []expr.Any{transport(flags), and(syn), test(expr.CmpOpEq, 0)}
}

// withoutINIT: @th,96,8 != 0x01, the type of the first SCTP chunk
func withoutINIT() []expr.Any {
	const chunk, initiation = 12, 1
	return []expr.Any{transport(chunk), test(expr.CmpOpNeq, initiation)}
}

// accept: accept
func accept() []expr.Any { return []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}} }

// back: return
func back() []expr.Any { return []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}} }

func jump(chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: chain}}
}

func goTo(chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}}
}

// countedDrop: counter drop
func countedDrop() []expr.Any {
	return []expr.Any{&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop}}
}

// countedReset: counter reject with tcp reset
func countedReset() []expr.Any {
	return []expr.Any{&expr.Counter{}, &expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}
}

// countedReject: counter reject
func countedReject(f inet.Family) []expr.Any {
	const portUnreachable, portUnreachable6 = 3, 4
	code := uint8(portUnreachable)
	if f == inet.IPv6 {
		code = portUnreachable6
	}
	return []expr.Any{&expr.Counter{}, &expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: code}}
}
