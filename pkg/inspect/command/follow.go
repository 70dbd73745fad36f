package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/control"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

func newWatchCommand() *cobra.Command {
	var q question
	var s selection
	cmd := &cobra.Command{
		Use: "watch [NAMESPACE/NAME | svc/NAME | NAMESPACE/]...", Short: "Show changes as they are committed",
		Long: "watch prints one line for each Service in each committed batch: added and removed endpoints and addresses, the number of elements,\n" +
			"and the microseconds of planning and of the kernel. If the terminal is too slow, watch skips batches and prints their number.\n" +
			"With names or a namespace, it prints only their Services, full rewrites and failures. Interrupt the " +
			"command to stop it.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := s.parse(args); err != nil {
				return err
			}
			if slices.ContainsFunc(s.wanted, isAddress) {
				return errors.New("watch takes names of Services, not addresses")
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return q.watch(ctx, &s)
		},
	}
	q.flags(cmd)
	s.flags(cmd, &q)
	return cmd
}

// watch prints the commits that concern the selected Services until the context ends, as text, lines of JSON, or
// documents of YAML.
func (q *question) watch(ctx context.Context, s *selection) error {
	p := q.printer(os.Stdout)
	started := func() { fmt.Fprintln(os.Stderr, "Watching; press Ctrl-C to stop.") }
	return control.Follow(ctx, q.client(), control.PageWatch, started, func(c *view.Commit) error {
		if s.namespace != "" || len(s.wanted) > 0 {
			c.Services = slices.DeleteFunc(c.Services, func(change view.Change) bool { return !s.matches(change.Service) })
			if len(c.Services) == 0 && c.More == 0 && c.Why == "" && c.Failed == "" {
				return nil
			}
		}
		switch q.format {
		case formatJSON:
			b, err := object(c)
			if err == nil {
				_, err = os.Stdout.Write(append(b, '\n'))
			}
			return err
		case formatYAML:
			p.Printf("---\n")
			return errors.Join(p.Err(), q.print(os.Stdout, c, nil))
		case formatJSONPath:
			err := q.print(os.Stdout, c, nil)
			if !isTerminal(os.Stdout) {
				p.Printf("\n")
			}
			return errors.Join(err, p.Err())
		}
		c.Text(p)
		return p.Err()
	})
}
