package command

import (
	"cmp"
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

// addCommands adds the commands, most of which query the program that runs on this node.
func addCommands(root *cobra.Command) {
	asking := []*cobra.Command{newStatusCommand(), newServicesCommand(), newVerifyCommand(), newWatchCommand(), newBundleCommand()}
	for _, c := range asking {
		c.Long = c.Short + ".\n\n" + c.Long + exitCodes
	}
	root.AddCommand(asking...)
	// These commands read the kernel or a folder, and need no running program.
	root.AddCommand(traceCommand(), renderCommand(), diffCommand(), preflightCommand())
}

const exitCodes = "\n\nExit codes: 0 no problem found, 1 problem found, 2 invalid usage or no answer from the running program."

// question has the flags that all commands that query the daemon share.
type question struct {
	output
	socket string
	// proxyName is the service-proxy name of the running program; empty for the default instance.
	proxyName string
}

func (q *question) flags(cmd *cobra.Command) {
	q.output.flags(cmd)
	q.socketFlag(cmd)
}

func (q *question) socketFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&q.proxyName, "service-proxy-name", "", "Query the program that runs with this flag.")
	cmd.Flags().StringVar(&q.socket, "control-socket", "", "Control socket of the running program: the value of its own flag --control-socket. Default: "+control.DefaultPath+", or that of --service-proxy-name.")
}

// soon is the timeout for the first byte of an answer that needs no comparison. The program waits for a busy loop for a part of it.
const soon = 15 * time.Second

// client returns a client for answers that the running program has at hand; patient returns one for answers that take longer.
func (q *question) client() *control.Client  { return q.within(soon) }
func (q *question) patient() *control.Client { return q.within(control.AnswerTime) }

func (q *question) within(patience time.Duration) *control.Client {
	return control.NewClient(cmp.Or(q.socket, control.PathOf(q.proxyName))).Within(patience)
}

func newStatusCommand() *cobra.Command {
	var q question
	cmd := &cobra.Command{
		Use: "status", Short: "Show the health of kube-nftproxy and this node", Args: cobra.NoArgs,
		Long: "The output has the health with reasons, the last sync, pending changes, repairs and the programs that caused them, the connection\n" +
			"to the API server, and configuration errors of this node. Each error has its impact and the command that fixes it.",
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

// answer prints the answer of the daemon. It returns errWrong if the answer has a problem.
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
		Long: "The output has each address and port with its policy, affinity and endpoints. For one Service, it also has each endpoint, and the\n" +
			"reason if an endpoint is not used: not ready, terminating, hinted to another zone, or not on this node. For one Service, the exit\n" +
			"code is 1 if the Service has a problem, such as a port without endpoints. --try connects to the endpoints, to find closed ports\n" +
			"and deleted pods. No other command sends packets to endpoints.",
		RunE: func(cmd *cobra.Command, args []string) error {
			namespace, name, single := wanted(args)
			if connecting && !single {
				return errors.New("--try needs the name of one Service")
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
	cmd.Flags().BoolVar(&connecting, "try", false, "For one Service: connect to its endpoints from this node, and show the results.")
	cmd.Flags().BoolVar(&onlyWrong, "wrong", false, "Show only Services with a problem; exit code 1 if there are any.")
	return cmd
}

// wanted parses the argument of the command services. A name without a namespace matches Services in all namespaces.
func wanted(args []string) (namespace, name string, single bool) {
	if len(args) == 0 {
		return "", "", false
	}
	namespace, name, found := strings.Cut(args[0], "/")
	if !found {
		namespace, name = "", namespace
	}
	name, _, _ = strings.Cut(name, ":") // other commands print NAMESPACE/NAME:PORT
	return namespace, name, name != ""
}

func newVerifyCommand() *cobra.Command {
	var q question
	var flows bool
	cmd := &cobra.Command{
		Use: "verify", Short: "Compare the tables in the kernel with the plan, element by element", Args: cobra.NoArgs,
		Long: "The program makes a new plan from the objects of the API, so that errors of its earlier syncs are found. A difference that a second\n" +
			"comparison no longer finds is not an error: it was a change in progress, or has been repaired. Large clusters take some seconds.\n" +
			"--flows also reads connection tracking, and finds entries that contradict the present endpoints. It deletes nothing. An established\n" +
			"TCP connection to a removed endpoint is a note, not an error: no proxy cuts such connections.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			var v view.Verification
			var params []string
			if flows {
				params = []string{"flows", "1"}
			}
			if err := q.patient().Get(cmd.Context(), control.PageVerify, &v, params...); err != nil {
				return err
			}
			return q.answer(&v, v.Text, v.Wrong())
		},
	}
	q.flags(cmd)
	cmd.Flags().BoolVar(&flows, "flows", false, "Also find entries of connection tracking that contradict the present endpoints.")
	return cmd
}

func newBundleCommand() *cobra.Command {
	var q question
	var file string
	cmd := &cobra.Command{
		Use: "bundle", Short: "Write an archive for a bug report, without secrets", Args: cobra.NoArgs,
		Long: "The tar.gz file has the output of all commands, the configuration, metrics, problems, tables as nft text, versions and sysctls.\n" +
			"It has names and addresses of Services, endpoints and clients, but no kubeconfig, token or certificate.",
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
	cmd.Flags().StringVarP(&file, "file", "f", "", "Output file; - for standard output. Default: a file in the current folder, named by the time.")
	return cmd
}

// write writes the archive to a file, and removes the file after an error.
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
