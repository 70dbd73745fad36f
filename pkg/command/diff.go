package command

import (
	"github.com/spf13/cobra"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/config"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// diffCommand compares the plan with the kernel's tables.
func diffCommand() *cobra.Command {
	o := config.NewOptions()
	var out output
	var from string
	cmd := &cobra.Command{
		Use:   "diff -f MANIFESTS",
		Short: "Compare the tables for manifests with the tables in the kernel",
		Long: `diff plans the given manifests as the daemon would, and compares the plan with the tables in the kernel of this node. Lines with "-"
are only in the kernel, lines with "+" only in the plan. Elements that packets add, and the element "state", are not compared.
The exit code is 0 without a difference, 1 with one. To compare the kernel with the plan of the running daemon, use verify.`,
		Example: `  kubectl get services,endpointslices,servicecidrs -A -o yaml | kube-nftproxy diff -f - --config=/var/lib/kube-proxy/config.conf`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			kernel, err := apply.Open()
			if err != nil {
				return err
			}
			defer kernel.Close() //nolint:errcheck // read only
			p, err := planManifests(o, cmd.Flags(), from, cmd.InOrStdin(), cmd.ErrOrStderr(), kernel)
			if err != nil {
				return err
			}
			lines, err := diff(p)
			if err != nil {
				return err
			}
			if err := out.print(cmd.OutOrStdout(), lines, func(printer *view.Printer) { printDiff(printer, lines) }); err != nil {
				return err
			}
			if len(lines) > 0 {
				return errWrong
			}
			return nil
		},
	}
	manifestFlags(cmd, o, &from)
	out.flags(cmd)
	return cmd
}

// diff compares a plan with the kernel.
func diff(p *plan.Planner) ([]nft.Line, error) {
	conn, err := nft.Open()
	if err != nil {
		return nil, err
	}
	defer conn.Close() //nolint:errcheck // read only
	elements := elementsOf(p)
	lines := []nft.Line{}
	for _, t := range p.Tables() {
		some, err := conn.Diff(t, elements[t.Family], plan.StateSet)
		if err != nil {
			return nil, err
		}
		lines = append(lines, some...)
	}
	return lines, nil
}

func printDiff(p *view.Printer, lines []nft.Line) {
	for _, l := range lines {
		style := view.Bad
		if l.Wanted {
			style = view.Good
		}
		p.Printf("%s\n", p.Paint(style, view.Printable(l.String())))
	}
}
