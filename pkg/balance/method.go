package balance

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
)

// Key is the part of a packet that selects a slot.
type Key uint8

// The keys.
const (
	// Chance: a random number selects the slot, and no part of the packet does.
	Chance Key = iota
	// Flow: the client's address and port.
	Flow
	// Source: a prefix of the client's address.
	Source
)

// Method is a Service's way to select slots. The zero value is the random choice.
type Method struct {
	Key Key
	// Prefixes are the lengths of the client's prefix, for IPv4 and for IPv6. They apply only to [Source].
	Prefixes [2]uint8
	// Size is the number of slots, one of [Sizes]. If it is 0, the number of endpoints decides, see [sizeFor]. It has
	// no effect on [Chance].
	Size uint32
}

// The names of methods in annotations.
const (
	Random     = "random"
	Maglev     = "maglev"
	SourceHash = "source-hash"
)

// Lengths are the usable lengths of prefixes. There are few, because each length in use needs a chain.
var Lengths = [...]uint8{8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 128}

// wholeAddress has the lengths of prefixes that contain a single client.
var wholeAddress = [2]uint8{32, 128}

// Parse reads the name of a method, such as random, maglev, source-hash, source-hash/24 or source-hash/24,56. The
// numbers are the lengths of prefixes for IPv4 and for IPv6. Any other text is an error.
func Parse(name string) (Method, error) {
	name, lengths, prefixed := strings.Cut(name, "/")
	switch {
	case name == Random && !prefixed:
		return Method{}, nil
	case name == Maglev && !prefixed:
		return Method{Key: Flow}, nil
	case name != SourceHash:
		return Method{}, fmt.Errorf("must be %s, %s, %s, or %[3]s with lengths of prefixes for IPv4 and IPv6, "+
			"such as %[3]s/24,56", Random, Maglev, SourceHash)
	}
	m := Method{Key: Source, Prefixes: wholeAddress}
	if !prefixed {
		return m, nil
	}
	given := strings.Split(lengths, ",")
	for i, text := range given {
		n, err := strconv.ParseUint(text, 10, 8)
		if err != nil || len(given) > len(m.Prefixes) || !slices.Contains(Lengths[:], uint8(n)) ||
			uint8(n) > wholeAddress[i] {
			return Method{}, fmt.Errorf("lengths of prefixes must be one or two of %s, at most 32 for IPv4",
				strings.Trim(fmt.Sprint(Lengths), "[]"))
		}
		m.Prefixes[i] = uint8(n)
	}
	return m, nil
}

// String returns the method's name as [Parse] reads it, followed by its number of slots if that is set.
func (m Method) String() string {
	name := [...]string{Random, Maglev, SourceHash}[m.Key]
	switch {
	case m.Key != Source || m.Prefixes == wholeAddress:
	case m.Prefixes[1] == wholeAddress[1]:
		name += fmt.Sprintf("/%d", m.Prefixes[0])
	default:
		name += fmt.Sprintf("/%d,%d", m.Prefixes[0], m.Prefixes[1])
	}
	if m.Key != Chance && m.Size != 0 {
		name += fmt.Sprintf(" with %d slots", m.Size)
	}
	return name
}

// Seed is the seed of the hash. It is constant, so that all nodes agree.
const Seed = 0x6b6e7078

// Slot returns the slot of a key in a table of the given size. It equals the result of nft's jhash with this size as
// the modulus (kernel: reciprocal_scale).
func Slot(key []byte, seed, size uint32) uint32 {
	slot, _ := bits.Mul32(jhash(key, seed), size)
	return slot
}

// jhash is the kernel's function of this name (include/linux/jhash.h): lookup3 by Bob Jenkins.
func jhash(key []byte, seed uint32) uint32 {
	const initial, block = 0xdeadbeef, 12
	a := initial + uint32(len(key)) + seed
	b, c := a, a
	word := binary.NativeEndian.Uint32
	for len(key) > block {
		a, b, c = a+word(key), b+word(key[4:]), c+word(key[8:])
		for i, n := range [...]int{4, 6, 8, 16, 19, 4} {
			switch i % 3 {
			case 0:
				a, c = a-c^bits.RotateLeft32(c, n), c+b
			case 1:
				b, a = b-a^bits.RotateLeft32(a, n), a+c
			case 2:
				c, b = c-b^bits.RotateLeft32(b, n), b+a
			}
		}
		key = key[block:]
	}
	if len(key) == 0 {
		return c
	}
	// The kernel adds the remaining bytes one by one, in little-endian order.
	var rest [block]byte
	copy(rest[:], key)
	little := binary.LittleEndian.Uint32
	a, b, c = a+little(rest[:]), b+little(rest[4:]), c+little(rest[8:])
	for i, n := range [...]int{14, 11, 25, 16, 4, 14, 24} {
		switch i % 3 {
		case 0:
			c = c ^ b - bits.RotateLeft32(b, n)
		case 1:
			a = a ^ c - bits.RotateLeft32(c, n)
		case 2:
			b = b ^ a - bits.RotateLeft32(a, n)
		}
	}
	return c
}
