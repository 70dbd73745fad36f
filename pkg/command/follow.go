package command

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/control"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

func newWatchCommand() *cobra.Command {
	var q question
	cmd := &cobra.Command{
		Use: "watch", Short: "Show changes as they are committed", Args: cobra.NoArgs,
		Long: "The output has one line for each Service in each committed batch: added and removed endpoints and addresses, the number of elements,\n" +
			"and the microseconds of planning and of the kernel. If the terminal is too slow, a line has the number of skipped batches.\n" +
			"Interrupt the command to stop it.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return q.watch(ctx)
		},
	}
	q.flags(cmd)
	return cmd
}

// watch prints commits until the context ends, as text, lines of JSON, or documents of YAML.
func (q *question) watch(ctx context.Context) error {
	p := q.printer(os.Stdout)
	begun := func() { fmt.Fprintln(os.Stderr, "Watching; press Ctrl-C to stop.") }
	return q.client().Follow(ctx, control.PageWatch, begun, func(line []byte) error {
		switch q.format {
		case formatJSON:
			p.Printf("%s\n", line)
			return p.Err()
		case formatYAML:
			text, err := yaml.JSONToYAML(line)
			if err == nil {
				p.Printf("---\n%s", text)
				err = p.Err()
			}
			return err
		}
		var c view.Commit
		if err := json.Unmarshal(line, &c); err != nil {
			return fmt.Errorf("read a commit: %w", err)
		}
		c.Text(p)
		return p.Err()
	})
}
