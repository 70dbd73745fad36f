// Command kubectl-nftproxy is a plugin of kubectl: it runs the commands of kube-nftproxy on the nodes of a cluster.
package main

import (
	"os"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/plugin"
)

// version is set at build time.
var version = "dev"

func main() {
	os.Exit(plugin.Run(version, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
