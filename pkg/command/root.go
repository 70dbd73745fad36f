package command

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/component-base/cli"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/config"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/control"
)

// Daemon runs the program until the context ends. The options are as the flags have set them, not completed and not validated.
type Daemon func(ctx context.Context, version string, o *config.Options, flags *pflag.FlagSet) error

// Run runs what the arguments of the process ask for, and returns the exit code. Without a command it is the daemon, as kube-proxy would be.
func Run(version string, daemon Daemon) int {
	root, args := newCommand(version, daemon), os.Args[1:]
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd(args...)
	if isCommand(root, args) {
		return execute(root)
	}
	return cli.Run(root)
}

// isCommand reports whether the arguments ask for something else than the daemon.
func isCommand(root *cobra.Command, args []string) bool {
	found, _, err := root.Find(args)
	return err == nil && found != root || len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd)
}

// newCommand returns the root command, with all others below it.
func newCommand(version string, daemon Daemon) *cobra.Command {
	o := config.NewOptions()
	o.ControlSocket = control.DefaultPath
	show := versionFlag("false")
	cmd := &cobra.Command{
		Use:   "kube-nftproxy",
		Short: "kube-nftproxy serves Kubernetes Services on a node by nftables",
		Long:  "kube-nftproxy watches Services and EndpointSlices, and programs the kernel's nftables so that this node's\npods and processes, and clients from outside, reach the endpoints behind them.",
		Args: func(cmd *cobra.Command, args []string) error {
			if strings.Join(args, "") != "" {
				return fmt.Errorf("%q does not take any arguments, got %q", cmd.CommandPath(), args)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if text := show.text(version); text != "" {
				fmt.Println(text)
				return nil
			}
			return daemon(cmd.Context(), version, o, cmd.Flags())
		},
	}
	cmd.Flags().Var(&show, "version", "Print the version and exit; with raw, also print how the program was built. A version, as vX.Y.Z, is accepted and ignored.")
	cmd.Flags().Lookup("version").NoOptDefVal = "true"
	o.AddFlags(cmd.Flags())
	addCommands(cmd)
	return cmd
}
