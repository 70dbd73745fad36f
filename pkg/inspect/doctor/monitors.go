package doctor

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/nodeport"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// Monitor is a program that receives a copy of each change of the ruleset.
type Monitor struct {
	// PID and Name identify the process. They are empty if the process is in another PID namespace.
	PID  int
	Name string
}

// String returns the process in words.
func (m Monitor) String() string {
	if m.PID == 0 {
		return "a process in another PID namespace"
	}
	return fmt.Sprintf("%s (pid %d)", m.Name, m.PID)
}

// slowCommits reports programs that make commits slower.
func (c *Config) slowCommits(list []Monitor) view.Findings {
	if len(list) == 0 {
		return nil
	}
	return view.Findings{view.NewFinding(view.Warning, view.SlowCommits, c.node(),
		"a program monitors nftables on this node: "+view.Names(view.Texts(list), 0),
		"the kernel sends this program a message about each changed element: commits take longer, and each changed "+
			"element takes 7.7 KiB of memory during the commit",
		c.on("stop this program, for example nft monitor. To list such sockets: ss -f netlink -p | grep nft"),
		"only this program")}
}

// Monitors returns the programs of this network namespace, except this process, that receive the kernel's announcements
// about nftables.
func Monitors() ([]Monitor, error) {
	table, err := os.ReadFile("/proc/thread-self/net/netlink")
	if err != nil {
		return nil, err
	}
	own, err := nodeport.OwnSockets()
	if err != nil {
		return nil, err
	}
	others := slices.DeleteFunc(members(table), func(inode uint32) bool {
		_, mine := own[inode]
		return mine
	})
	if len(others) == 0 {
		return nil, nil
	}
	return owners("/proc", others), nil
}

// members returns the inodes of the sockets that receive announcements about nftables. table is a list of netlink
// sockets:
//
//	sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode
//	0000000000000000 12  4242       00000040 0        0        0     2        0        12345
func members(table []byte) (inodes []uint32) {
	const (
		protocol, groups, inode, fields = 1, 3, 9, 10
		nftables                        = 1 << (unix.NFNLGRP_NFTABLES - 1)
	)
	for lines := bufio.NewScanner(bytes.NewReader(table)); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) < fields || f[protocol] != strconv.Itoa(unix.NETLINK_NETFILTER) {
			continue
		}
		mask, err := strconv.ParseUint(f[groups], 16, 32)
		number, failed := strconv.ParseUint(f[inode], 10, 32)
		if err == nil && failed == nil && mask&nftables != 0 {
			inodes = append(inodes, uint32(number))
		}
	}
	return inodes
}

// owners returns the process of each socket. It reads the files of all visible processes.
func owners(proc string, inodes []uint32) []Monitor {
	list := make([]Monitor, len(inodes))
	wanted := map[string]int{}
	for i, n := range inodes {
		wanted[fmt.Sprintf("socket:[%d]", n)] = i
	}
	files, _ := filepath.Glob(filepath.Join(proc, "[0-9]*/fd/*")) // the pattern is valid
	for _, file := range files {
		if len(wanted) == 0 {
			break
		}
		target, err := os.Readlink(file)
		i, found := wanted[target]
		if err != nil || !found {
			continue
		}
		delete(wanted, target)
		process := filepath.Dir(filepath.Dir(file))
		name, _ := os.ReadFile(filepath.Join(process, "comm")) // it may have exited
		list[i].PID, _ = strconv.Atoi(filepath.Base(process))
		list[i].Name = strings.TrimSpace(string(name))
	}
	return list
}
