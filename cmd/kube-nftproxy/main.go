// Command kube-nftproxy serves Kubernetes Services on a node with nftables.
package main

import (
	"fmt"
	"os"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/daemon"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/command"
)

// version is set at build time.
var version = "dev"

func main() {
	defer func() {
		if r := recover(); r != nil {
			fmt.Fprintln(os.Stderr, "kube-nftproxy:", r)
			panic(r)
		}
	}()
	os.Exit(command.Run(version, daemon.Run))
}
