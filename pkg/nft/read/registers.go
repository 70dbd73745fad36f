package read

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// register returns the index of a register's first word among the 16 words of 32 bits. ok is false for the verdict
// register, which has no word, and for unknown numbers.
func register(number uint32) (at int, ok bool) {
	const oldRegisters = 4 // of 128 bits each
	switch {
	case number == unix.NFT_REG_VERDICT:
		return 0, false
	case number <= oldRegisters:
		return int(number-1) * 4, true
	case number >= unix.NFT_REG32_00 && number <= unix.NFT_REG32_15:
		return int(number - unix.NFT_REG32_00), true
	}
	return 0, false
}

// Register returns the offset in bytes of a register within all registers (see [Registers]). ok is false for the
// verdict register and for unknown numbers.
func Register(number uint32) (offset int, ok bool) {
	at, ok := register(number)
	return at * 4, ok
}

// Registers is the size of all registers together, in bytes.
const Registers = 64

// native reads a value of 4 bytes in host byte order. It returns 0 for a value of another length.
func native(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}
