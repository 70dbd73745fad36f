package seccomp

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Profile is the part of a profile that the compiler knows. The first rule that matches a system call applies to it.
type Profile struct {
	DefaultAction   string
	DefaultErrnoRet uint32
	Architectures   []string
	Syscalls        []Rule
}

// Rule is the action for system calls with these names. All Args have to match.
type Rule struct {
	Comment  string `json:",omitempty"`
	Names    []string
	Action   string
	ErrnoRet uint32 `json:",omitempty"`
	Args     []Arg  `json:",omitempty"`
}

// Arg is a condition about the lower 32 bits of an argument, counted from 0. With SCMP_CMP_EQ, the argument is Value. With
// SCMP_CMP_MASKED_EQ, the argument's bits in the mask Value are ValueTwo.
type Arg struct {
	Index    uint32
	Value    uint32
	ValueTwo uint32 `json:",omitempty"`
	Op       string
}

// Filter is a filter of the kernel.
type Filter []unix.SockFilter

// Read reads a profile from a file. It returns an error for a field that the compiler does not know.
func Read(file string) (Profile, error) {
	f, err := os.Open(file)
	if err != nil {
		return Profile{}, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	var p Profile
	decoder := json.NewDecoder(f)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&p); err != nil {
		return Profile{}, fmt.Errorf("%s: %w", file, err)
	}
	return p, nil
}

var constant = regexp.MustCompile(`(?m)^\s*SYS_(\w+)\s*= (\d+)`)

// Numbers returns the numbers of the system calls of an architecture, as Go calls it, by name. It reads them from the source of
// golang.org/x/sys.
func Numbers(ctx context.Context, architecture string) (map[string]uint32, error) {
	dir, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "golang.org/x/sys").Output()
	if err != nil {
		return nil, fmt.Errorf("find golang.org/x/sys: %w", err)
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "unix", "zsysnum_linux_"+architecture+".go"))
	if err != nil {
		return nil, err
	}
	numbers := map[string]uint32{}
	for _, m := range constant.FindAllStringSubmatch(string(text), -1) {
		n, err := strconv.ParseUint(m[2], 10, 32)
		if err != nil {
			return nil, fmt.Errorf("number of %s: %w", m[1], err)
		}
		numbers[strings.ToLower(m[1])] = uint32(n)
	}
	return numbers, nil
}

// Compile returns the filter of a profile for this architecture. It leaves out the system calls that this architecture does not have, as runtimes
// do. With the variable KNP_SYSCALLS, the filter allows the calls for which the profile has no rule.
func (p Profile) Compile(ctx context.Context) (Filter, error) {
	numbers, err := Numbers(ctx, runtime.GOARCH)
	if err != nil {
		return nil, err
	}
	const number, firstArgument, argument = 0, 16, 8 // offsets in struct seccomp_data, and the size of an argument
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	var filter Filter
	for _, r := range p.Syscalls {
		result, err := result(r.Action, r.ErrnoRet)
		if err != nil {
			return nil, err
		}
		for _, name := range r.Names {
			n, known := numbers[name]
			if !known {
				continue
			}
			conditions := Filter{load(number), {K: n}}
			for _, a := range r.Args {
				conditions = append(conditions, load(firstArgument+argument*a.Index)) // its lower half: both architectures are little-endian
				switch a.Op {
				case "SCMP_CMP_EQ":
					conditions = append(conditions, unix.SockFilter{K: a.Value})
				case "SCMP_CMP_MASKED_EQ":
					conditions = append(conditions, unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: a.Value}, unix.SockFilter{K: a.ValueTwo})
				default:
					return nil, fmt.Errorf("%s: operator %s is not known here", name, a.Op)
				}
			}
			for i := range conditions {
				if conditions[i].Code == 0 { // a comparison: the next rule follows the last condition and the result
					conditions[i].Code, conditions[i].Jf = unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, uint8(len(conditions)-i)
				}
			}
			filter = append(append(filter, conditions...), answer(result))
		}
	}
	if os.Getenv("KNP_SYSCALLS") != "" { // hack/seccomp.sh records the calls that the profile lacks
		p.DefaultAction = "SCMP_ACT_ALLOW"
	}
	otherwise, err := result(p.DefaultAction, p.DefaultErrnoRet)
	return append(filter, answer(otherwise)), err
}

func answer(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }

// result returns the kernel's value of an action.
func result(action string, errno uint32) (uint32, error) {
	switch action {
	case "SCMP_ACT_ALLOW":
		return unix.SECCOMP_RET_ALLOW, nil
	case "SCMP_ACT_ERRNO":
		return unix.SECCOMP_RET_ERRNO | errno, nil
	case "SCMP_ACT_KILL_PROCESS":
		return unix.SECCOMP_RET_KILL_PROCESS, nil
	}
	return 0, fmt.Errorf("action %s is not known here", action)
}

// Install applies a filter to this thread, and to the program that replaces it. It also takes from them the possibility to get new
// privileges.
func (f Filter) Install() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	program := unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0); err != nil {
		return fmt.Errorf("set filter: %w", err)
	}
	return nil
}
