package command

import (
	"errors"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/doctor"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/probe"
)

// preflightCommand checks a node before an installation.
func preflightCommand() *cobra.Command {
	var o output
	var root, name string
	cmd := &cobra.Command{
		Use: "preflight", Short: "Check a node before the installation of kube-nftproxy", Args: cobra.NoArgs,
		Long: "Check a node before the installation of kube-nftproxy.\n\n" +
			"The command checks the kernel and its features, the ports of kube-nftproxy, the present proxy with its mode and rules, the pod network,\n" +
			"firewalls, chains that drop forwarded packets, and the sysctls that Services need. It changes nothing, and queries neither the API\n" +
			"server nor a running kube-nftproxy. The kernel may load the modules of nftables.",
		Example: "  kube-nftproxy preflight\n  kube-nftproxy preflight -o json | jq -r '.findings[].reason'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if name == "" {
				name, _ = os.Hostname() // after an error, the findings name no node
			}
			v := doctor.Preflight(cmd.Context(), doctor.Site{
				NodeName: strings.ToLower(name), Root: root, Lacks: lacks, Earlier: doctor.Earlier(plan.TableName, plan.FirstPriority),
			})
			if err := o.print(cmd.OutOrStdout(), v, v.Text); err != nil {
				return err
			}
			if !v.Ready {
				return errWrong
			}
			return nil
		},
	}
	o.flags(cmd)
	cmd.Flags().StringVar(&root, "root", "/", "Root folder of the node, if the command runs in a container.")
	cmd.Flags().StringVar(&name, "hostname-override", "", "Name of the Node. Default: the host name.")
	return cmd
}

// lacks returns the features that the tables of IP families need and the kernel lacks.
func lacks(families []inet.Family) ([]probe.Missing, error) {
	kernel, err := apply.Open()
	if err != nil {
		return nil, err
	}
	missing, err := kernel.Lacks(plan.Options{Families: families})
	return missing, errors.Join(err, kernel.Close())
}
