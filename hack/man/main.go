// Command man writes the manual pages: one for each command of kube-nftproxy, and one for the kubectl plugin. SOURCE_DATE_EPOCH is their date.
// Usage: man VERSION FOLDER
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/command"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/plugin"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: man VERSION FOLDER")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "man:", err)
		os.Exit(1)
	}
}

func write(version, dir string) error {
	for section, cmd := range map[string]*cobra.Command{"8": command.New(version, nil), "1": plugin.New(version)} {
		cmd.DisableAutoGenTag = true
		header := &doc.GenManHeader{Section: section, Source: "kube-nftproxy " + version, Manual: "kube-nftproxy"}
		if err := doc.GenManTree(cmd, header, dir); err != nil {
			return err
		}
	}
	return nil
}
