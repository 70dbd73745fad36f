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
		Long: "One line for each Service in each batch that the kernel has committed: endpoints and addresses that came and went, elements, and the\n" +
			"microseconds that planning and the kernel took. It ends when it is interrupted. Where it can't keep up, it says how much it missed.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return q.watch(ctx)
		},
	}
	q.flags(cmd)
	return cmd
}

// watch prints commits until the context ends: lines of JSON or documents of YAML, where that is wanted.
func (q *question) watch(ctx context.Context) error {
	p := q.printer(os.Stdout)
	begun := func() { fmt.Fprintln(os.Stderr, "Watching; Ctrl-C ends it.") }
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
