package command

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/control"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// addCommands adds the commands. Most of them query the program that runs on this node.
func addCommands(root *cobra.Command, version string) {
	root.AddCommand(newStatusCommand(), newServicesCommand(), newVerifyCommand(), newWatchCommand(), newBundleCommand(), newVersionCommand(version),
		// These commands read the kernel or manifests. They work without a running program. diff then needs -f and the
		// daemon's flags.
		traceCommand(), renderCommand(), diffCommand(), preflightCommand())
	for _, c := range root.Commands() {
		c.Long = strings.TrimSpace(c.Long) + "\n\nExit codes:"
		for _, e := range exitCodes {
			c.Long += fmt.Sprintf("\n  %d  %s", e.code, e.meaning)
		}
	}
}

// question has the flags of all commands that query the daemon.
type question struct {
	output
	socket string
	// proxyName is the service-proxy name of the running program; empty for the default instance.
	proxyName string
}

func (q *question) flags(cmd *cobra.Command, formats ...string) {
	q.output.flags(cmd, formats...)
	q.socketFlag(cmd)
}

func (q *question) socketFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&q.proxyName, "service-proxy-name", "", proxyNameUsage)
	cmd.Flags().StringVar(&q.socket, "control-socket", "", socketUsage)
}

// path returns the path of the control socket.
func (q *question) path() string { return cmp.Or(q.socket, control.PathOf(q.proxyName)) }

// The help of the flags that select the running program.
const (
	proxyNameUsage = "Query the program that runs with this value of --service-proxy-name."
	socketUsage    = "Control socket of the running program. Set it if that program runs with --control-socket. " +
		"Default: " + control.DefaultPath + ", or the socket of --service-proxy-name."
)

// soon is the timeout for the first byte of an answer that needs no comparison. It is longer than the time for which
// the program waits for a busy loop.
const soon = 15 * time.Second

// client returns a client for quick answers of the running program; patient returns a client for answers that take
// longer.
func (q *question) client() *control.Client  { return q.within(soon) }
func (q *question) patient() *control.Client { return q.within(control.AnswerTime) }

func (q *question) within(patience time.Duration) *control.Client {
	return control.NewClient(q.path()).Within(patience)
}

func newStatusCommand() *cobra.Command {
	var q question
	cmd := &cobra.Command{
		Use: "status", Short: "Show the health of kube-nftproxy and this node", Args: cobra.NoArgs,
		Long: "status shows the health with reasons, the last sync, pending changes, repairs and the programs that caused them, the connection\n" +
			"to the API server, and faults of this node. Each fault has its impact, the smallest fix and the effects " +
			"of the fix. -o wide adds notes.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			var s view.Status
			if err := q.client().Get(cmd.Context(), control.PageStatus, &s); err != nil {
				return err
			}
			return q.answer(os.Stdout, &s, s.Text, s.Wrong())
		},
	}
	q.flags(cmd)
	return cmd
}

func newVerifyCommand() *cobra.Command {
	var q question
	var flows bool
	cmd := &cobra.Command{
		Use: "verify", Short: "Compare the tables in the kernel with the plan, element by element", Args: cobra.NoArgs,
		Long: "verify compares each rule and element in the kernel with a new plan, which the running program makes from the objects of the API. So\n" +
			"it finds errors of earlier syncs. verify reports a difference only if a second comparison also finds it: other differences are changes\n" +
			"in progress, or have been repaired. Large clusters take some seconds.\n\n" +
			"--flows also reads connection tracking, and finds entries that contradict the present endpoints. It deletes nothing. An established\n" +
			"TCP connection to a removed endpoint is a note, not an error: without --terminate-connections, such " +
			"connections continue.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			var v view.Verification
			var params []string
			if flows {
				params = []string{"flows", "1"}
			}
			if err := q.patient().Get(cmd.Context(), control.PageVerify, &v, params...); err != nil {
				return err
			}
			return q.answer(os.Stdout, &v, v.Text, v.Wrong())
		},
	}
	q.flags(cmd)
	cmd.Flags().BoolVar(&flows, "flows", false, "Also find entries of connection tracking that contradict the "+
		"present endpoints.")
	return cmd
}
