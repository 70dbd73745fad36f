package command

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/control"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// addCommands adds what can be asked of the program that runs on this node.
func addCommands(root *cobra.Command) {
	asking := []*cobra.Command{newStatusCommand(), newServicesCommand(), newVerifyCommand(), newWatchCommand(), newBundleCommand()}
	for _, c := range asking {
		c.Long = c.Short + ".\n\n" + c.Long + exitCodes
	}
	root.AddCommand(asking...)
	// Those that ask the kernel, or a folder, need no running program.
	root.AddCommand(traceCommand(), renderCommand(), diffCommand())
}

const exitCodes = "\n\nExit codes: 0 all is well, 1 something is wrong, 2 wrong usage or nobody answers."

// question is what commands that ask the daemon have in common.
type question struct {
	output
	socket string
}

func (q *question) flags(cmd *cobra.Command) {
	q.output.flags(cmd)
	q.socketFlag(cmd)
}

func (q *question) socketFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&q.socket, "control-socket", control.DefaultPath, "Socket of the running program, as its flag of the same name has it.")
}

// soon is how long a program that has nothing to compare may take to begin its answer: it waits for a busy loop for a part of that.
const soon = 15 * time.Second

// client asks the running program for what it knows, patient for what it has to find out first.
func (q *question) client() *control.Client { return control.NewClient(q.socket).Within(soon) }
func (q *question) patient() *control.Client {
	return control.NewClient(q.socket).Within(control.AnswerTime)
}

func newStatusCommand() *cobra.Command {
	var q question
	cmd := &cobra.Command{
		Use: "status", Short: "Tell how kube-nftproxy and this node are", Args: cobra.NoArgs,
		Long: "Health and why, the last sync and what for, what is pending, repairs and who made them necessary, the connection to the API server,\n" +
			"and what is misconfigured on this node, each with what it breaks and the command that mends it.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			var s view.Status
			if err := q.client().Get(cmd.Context(), control.PageStatus, &s); err != nil {
				return err
			}
			return q.answer(&s, s.Text, s.Wrong())
		},
	}
	q.flags(cmd)
	return cmd
}

// answer prints what the daemon has answered, and returns errWrong if something is.
func (q *question) answer(value any, text func(*view.Printer), wrong bool) error {
	if err := q.print(os.Stdout, value, text); err != nil {
		return err
	}
	if wrong {
		return errWrong
	}
	return nil
}

func newServicesCommand() *cobra.Command {
	var q question
	var onlyWrong, connecting bool
	cmd := &cobra.Command{
		Use: "services [NAMESPACE/NAME | NAME | NAMESPACE/]", Short: "Show Services as this node serves them", Args: cobra.MaximumNArgs(1),
		Long: "Every address and port with its policy, affinity and endpoints. For one Service also every endpoint, and why it isn't used where it\n" +
			"isn't: not ready, terminating, hinted to another zone, not on this node... A single Service with which something is wrong, as a\n" +
			"port without endpoints, gives exit code 1. --try connects to its endpoints, which tells a closed port and a pod that is gone from\n" +
			"what a proxy can be blamed for: the only thing that any of these commands sends.",
		RunE: func(cmd *cobra.Command, args []string) error {
			namespace, name, single := wanted(args)
			if connecting && !single {
				return errors.New("--try is for one Service: give its name")
			}
			var v view.Services
			if err := q.client().Get(cmd.Context(), control.PageServices, &v, "namespace", namespace, "name", name); err != nil {
				return err
			}
			if onlyWrong {
				v.Services = slices.DeleteFunc(v.Services, func(s view.Service) bool { return !s.Wrong() })
			}
			text := v.Text
			if single {
				text = v.Detail
			}
			fine := true
			if connecting {
				fine = try(cmd.Context(), &v)
			}
			return q.answer(&v, text, (single || onlyWrong) && v.Wrong() || !fine)
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			var names []string
			if len(args) > 0 || q.client().Get(cmd.Context(), control.PageNames, &names) != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
	}
	q.flags(cmd)
	cmd.Flags().BoolVar(&connecting, "try", false, "For one Service: connect to its endpoints from this node, and say what comes of it.")
	cmd.Flags().BoolVar(&onlyWrong, "wrong", false, "Only Services with which something is wrong; exit code 1 if there are any.")
	return cmd
}

// wanted reads which Services are meant. A name without a namespace is looked for in all.
func wanted(args []string) (namespace, name string, single bool) {
	if len(args) == 0 {
		return "", "", false
	}
	namespace, name, found := strings.Cut(args[0], "/")
	if !found {
		namespace, name = "", namespace
	}
	name, _, _ = strings.Cut(name, ":") // as other commands name a port
	return namespace, name, name != ""
}

func newVerifyCommand() *cobra.Command {
	var q question
	cmd := &cobra.Command{
		Use: "verify", Short: "Compare what the kernel holds with what it should, element by element", Args: cobra.NoArgs,
		Long: "What it should hold is planned anew from the objects of the API, so that nothing the running program may have got wrong on the way\n" +
			"counts. What is under way, or has been repaired at the second look, isn't a difference. On a large cluster it takes some seconds.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			var v view.Verification
			if err := q.patient().Get(cmd.Context(), control.PageVerify, &v); err != nil {
				return err
			}
			return q.answer(&v, v.Text, v.Total > 0)
		},
	}
	q.flags(cmd)
	return cmd
}

func newBundleCommand() *cobra.Command {
	var q question
	var file string
	cmd := &cobra.Command{
		Use: "bundle", Short: "Write an archive for a bug report, without secrets", Args: cobra.NoArgs,
		Long: "A tar.gz file with the answers of all commands, the configuration, metrics, problems, tables in nft's language, versions and sysctls.\n" +
			"No kubeconfig, token or certificate is in it; names and addresses of Services, endpoints and clients are.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "-" {
				return q.patient().Copy(cmd.Context(), os.Stdout, control.PageBundle)
			}
			if file == "" {
				file = "kube-nftproxy-" + time.Now().UTC().Format("20060102-150405") + ".tar.gz"
			}
			if err := q.write(cmd, file); err != nil {
				return err
			}
			fmt.Println(file)
			return nil
		},
	}
	q.socketFlag(cmd)
	cmd.Flags().StringVarP(&file, "file", "f", "", "Where to write it; - is standard output. Default: a file in this folder, named by the time.")
	return cmd
}

// write writes the archive to a file, or leaves none.
func (q *question) write(cmd *cobra.Command, file string) (err error) {
	to, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	err = q.patient().Copy(cmd.Context(), to, control.PageBundle)
	if closed := to.Close(); err == nil {
		err = closed
	}
	if err != nil {
		_ = os.Remove(file)
	}
	return err
}
