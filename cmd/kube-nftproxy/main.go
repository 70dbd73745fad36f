// Command kube-nftproxy serves Kubernetes Services on a node by nftables.
package main

import (
	"fmt"
	"os"
)

func main() {
	defer func() {
		if r := recover(); r != nil {
			fmt.Fprintln(os.Stderr, "kube-nftproxy:", r)
			panic(r)
		}
	}()
	os.Exit(start(newCommand(), os.Args[1:]))
}
