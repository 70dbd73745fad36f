package instance

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Record says which process an instance is.
type Record struct {
	ID string `json:"id"`
	// PID is its number as it knows it, which in a container may be another one for others; Name is that of its program.
	PID  int    `json:"pid"`
	Name string `json:"name"`
	// Started is when it started, in nanoseconds since the machine did: setting the clock does not change it.
	Started int64 `json:"started"`
}

// String names the process as a person would look for it.
func (r Record) String() string { return fmt.Sprintf("%s, pid %d", r.Name, r.PID) }

// newer reports whether a process started after another one.
func (r Record) newer(other Record) bool {
	if r.Started != other.Started {
		return r.Started > other.Started
	}
	return r.ID > other.ID
}

// Own returns a record of this process that no other one has.
func Own() Record {
	r := Record{ID: rand.Text(), PID: os.Getpid(), Name: "kube-nftproxy", Started: sinceBoot()}
	if len(os.Args) > 0 {
		r.Name = filepath.Base(os.Args[0])
	}
	return r
}

func sinceBoot() int64 {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) != nil {
		return time.Now().UnixNano()
	}
	return t.Nano()
}

// message is a line that one process sends another.
type message struct {
	Record
	Ready bool `json:"ready,omitempty"`
	Yours bool `json:"yours,omitempty"`
}
