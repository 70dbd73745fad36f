package nodeport

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Range is a range of ports, inclusive.
type Range struct{ First, Last uint16 }

// String returns the range in the form 32768-60999.
func (r Range) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

func (r Range) contains(port uint16) bool { return r.First <= port && port <= r.Last }

// Ephemeral is the range from which the kernel assigns a port to a process that does not choose one. It is the same
// for both families.
type Ephemeral struct {
	Range Range
	// Reserved are parts of the range that the kernel does not assign.
	Reserved []Range
}

// Contains reports whether the kernel may assign the port.
func (e Ephemeral) Contains(port uint16) bool {
	inside := func(r Range) bool { return r.contains(port) }
	return inside(e.Range) && !slices.ContainsFunc(e.Reserved, inside)
}

// sysctls is the directory of the settings of the current thread's network namespace.
const sysctls = "/proc/sys/net/ipv4"

// ReadEphemeral reads the ephemeral range of this network namespace.
func ReadEphemeral() (Ephemeral, error) {
	var texts [2]string
	for i, name := range []string{"ip_local_port_range", "ip_local_reserved_ports"} {
		text, err := os.ReadFile(filepath.Join(sysctls, name))
		if err != nil {
			return Ephemeral{}, fmt.Errorf("read ephemeral range: %w", err)
		}
		texts[i] = string(text)
	}
	return parseEphemeral(texts[0], texts[1])
}

// parseEphemeral parses ip_local_port_range, such as "32768\t60999", and ip_local_reserved_ports, such as
// "30000-32767,40000".
func parseEphemeral(ports, reserved string) (e Ephemeral, err error) {
	if e.Range, err = parseRange(strings.Join(strings.Fields(ports), "-")); err != nil {
		return e, err
	}
	for part := range strings.SplitSeq(strings.TrimSpace(reserved), ",") {
		if part == "" {
			continue
		}
		r, err := parseRange(part)
		if err != nil {
			return e, err
		}
		e.Reserved = append(e.Reserved, r)
	}
	return e, nil
}

// parseRange parses a range or a single port.
func parseRange(s string) (Range, error) {
	first, last, found := strings.Cut(s, "-")
	if !found {
		last = first
	}
	low, err := strconv.ParseUint(first, 10, 16)
	if err != nil {
		return Range{}, fmt.Errorf("parse range of ports: %w", err)
	}
	high, err := strconv.ParseUint(last, 10, 16)
	if err != nil {
		return Range{}, fmt.Errorf("parse range of ports: %w", err)
	}
	return Range{uint16(low), uint16(high)}, nil
}
