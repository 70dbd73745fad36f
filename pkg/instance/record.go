package instance

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Record identifies the process of an instance.
type Record struct {
	ID string `json:"id"`
	// PID is the process ID in its own PID namespace. Name is the name of its program.
	PID  int    `json:"pid"`
	Name string `json:"name"`
	// Started is the time of its start in nanoseconds since the boot. Setting the clock does not change it.
	Started int64 `json:"started"`
}

// String returns the process in a form that a user can look up.
func (r Record) String() string { return fmt.Sprintf("%s, pid %d", r.Name, r.PID) }

// newer reports whether this process started after the other one.
func (r Record) newer(other Record) bool {
	if r.Started != other.Started {
		return r.Started > other.Started
	}
	return r.ID > other.ID
}

// Own returns a unique record of this process.
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

// message is one line between processes.
type message struct {
	Record
	challenge
	Ready bool `json:"ready,omitempty"`
	Yours bool `json:"yours,omitempty"`
}
