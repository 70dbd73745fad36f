package command

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/component-base/cli"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/config"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/control"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/usage"
)

// Daemon runs the program until the context ends. It must complete and validate the options, which have only the values
// of the flags.
type Daemon func(ctx context.Context, version string, o *config.Options, flags *pflag.FlagSet) error

// Run runs the command in the arguments of the process, and returns the exit code. Without a command, it runs the
// daemon, like kube-proxy.
func Run(version string, daemon Daemon) int {
	root, args := New(version, daemon), os.Args[1:]
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd(args...)
	if err := mistyped(root, args); err != nil {
		fmt.Fprintf(os.Stderr, "Error: %v\n", err)
		return exitUnable
	}
	if isCommand(root, args) {
		return execute(root)
	}
	return cli.Run(root)
}

// mistyped returns an error if the first argument is similar to the name of a command, or if a later one is such a
// name, as in "get services". The daemon gets other arguments, and rejects them as kube-proxy does.
func mistyped(root *cobra.Command, args []string) error {
	if len(args) == 0 || args[0] == "" || strings.HasPrefix(args[0], "-") || isCommand(root, args) {
		return nil
	}
	var commands []string
	for _, c := range root.Commands() {
		commands = append(commands, c.Name())
	}
	if similar := usage.DidYouMean(args[0], commands); similar != "" {
		return fmt.Errorf("unknown command %q%s", args[0], similar)
	}
	if found, _, err := root.Find(args[1:]); err == nil && found != root {
		return fmt.Errorf("unknown command %q%s", args[0], usage.DidYouMean(found.Name(), commands))
	}
	return nil
}

// isCommand reports whether the arguments name a command. Otherwise they are for the daemon.
func isCommand(root *cobra.Command, args []string) bool {
	found, _, err := root.Find(args)
	return err == nil && found != root || len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd)
}

// New returns the root command with its subcommands.
func New(version string, daemon Daemon) *cobra.Command {
	o := config.NewOptions()
	o.ControlSocket = control.DefaultPath
	show := versionFlag("false")
	cmd := &cobra.Command{
		Use:   "kube-nftproxy",
		Short: "Serve Kubernetes Services on a node with nftables",
		Long: "kube-nftproxy watches Services and EndpointSlices. It programs nftables on this node, so that pods, " +
			"processes of the node\nand external clients reach the endpoints of Services.",
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
			if !cmd.Flags().Changed("control-socket") {
				o.ControlSocket = control.PathOf(o.ServiceProxyName)
			}
			return daemon(cmd.Context(), version, o, cmd.Flags())
		},
	}
	cmd.Flags().Var(&show, "version", "Print the version and exit; with raw, also print how the program was built. A "+
		"version, such as vX.Y.Z, is accepted and ignored.")
	cmd.Flags().Lookup("version").NoOptDefVal = "true"
	o.AddFlags(cmd.Flags())
	addCommands(cmd, version)
	cmd.SilenceUsage = true
	cmd.SetFlagErrorFunc(usage.FlagError)
	usage.FitHelp(cmd)
	general := cmd.HelpFunc()
	cmd.SetHelpFunc(func(c *cobra.Command, args []string) {
		if c == cmd {
			help(c, o)
			return
		}
		general(c, args)
	})
	return cmd
}

// help prints the commands, and the flags of the daemon in groups.
func help(cmd *cobra.Command, o *config.Options) {
	to := cmd.OutOrStdout()
	width := usage.Width(to)
	fmt.Fprintf(to, "%s\n\nUsage:\n  %s [flags]      run the proxy of this node\n"+
		"  %[2]s COMMAND      query it\n\nCommands:\n", usage.Fill(cmd.Long, width), cmd.Name())
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() || c.Name() == "help" {
			fmt.Fprintln(to, usage.Fill(fmt.Sprintf("  %-12s%s", c.Name(), c.Short), width))
		}
	}
	sets := o.FlagSets()
	rest := sets.FlagSet("other")
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		for _, set := range sets.FlagSets {
			if set.Lookup(f.Name) != nil {
				return
			}
		}
		rest.AddFlag(f)
	})
	sets.Order = slices.DeleteFunc(sets.Order, func(name string) bool { return name == config.IgnoredFlags })
	cliflag.PrintSections(to, sets, width) // without a terminal, each flag is one line
	fmt.Fprintf(to, "\nRun %s COMMAND --help for the flags of a command.\n", cmd.Name())
}
