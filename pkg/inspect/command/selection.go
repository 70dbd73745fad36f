package command

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/control"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// selection has the arguments and flags that select Services, as with kubectl.
type selection struct {
	namespace, selector string
	all                 bool
	// wanted are names and addresses, in the form of queries to the running program. If it is empty, all Services of
	// the namespace are selected.
	wanted []string
}

// flags adds -n and -A, and completion of names.
func (s *selection) flags(cmd *cobra.Command, q *question) {
	cmd.Flags().StringVarP(&s.namespace, "namespace", "n", "", "Only Services in this namespace. Default: all namespaces.")
	cmd.Flags().BoolVarP(&s.all, "all-namespaces", "A", false, "Services in all namespaces, which is the default.")
	cmd.ValidArgsFunction = func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		var names []string
		_ = q.client().Get(cmd.Context(), control.PageNames, &names) // without an answer, there are no suggestions
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// parse reads the arguments. Each is NAMESPACE/NAME, NAME, NAMESPACE/ or an address. A name may begin with svc/, and
// end with a port.
func (s *selection) parse(args []string) error {
	if s.all {
		s.namespace = ""
	}
	for _, arg := range args {
		if isAddress(arg) {
			s.wanted = append(s.wanted, arg)
			continue
		}
		namespace, name, _, err := splitName(arg, s.namespace)
		switch {
		case err != nil:
			return err
		case s.namespace != "" && namespace != s.namespace:
			return fmt.Errorf("%s is not in namespace %s", arg, s.namespace)
		case name != "":
			s.wanted = append(s.wanted, strings.TrimPrefix(namespace+"/"+name, "/"))
		case len(args) > 1:
			return fmt.Errorf("%s selects a namespace, and must be the only argument", arg)
		default:
			s.namespace = namespace
		}
	}
	return nil
}

// get queries the page of Services. names, if any, replace the names of the selection.
func (s *selection) get(ctx context.Context, c *control.Client, into any, names ...string) error {
	params := []string{"namespace", s.namespace, "selector", s.selector}
	if len(names) == 0 {
		names = s.wanted
	}
	for _, name := range names {
		params = append(params, "name", name)
	}
	return c.Get(ctx, control.PageServices, into, params...)
}

// matches reports whether a Service of this full name is selected. Addresses match no name.
func (s *selection) matches(fullName string) bool {
	namespace, name, _ := strings.Cut(fullName, "/")
	return (s.namespace == "" || s.namespace == namespace) &&
		(len(s.wanted) == 0 || slices.Contains(s.wanted, fullName) || slices.Contains(s.wanted, name))
}

// isAddress reports whether the running program reads a text as an address, an address with a port, or a node port.
func isAddress(text string) bool {
	_, notAddr := model.ParseAddr(text)
	_, notBoth := model.ParseAddrPort(text)
	_, notPort := strconv.ParseUint(text, 10, 16)
	return notAddr == nil || notBoth == nil || notPort == nil
}

// kinds has the words that may precede the slash before a name, by kind.
var kinds = map[string][]string{"Service": {"svc", "service", "services"}, "Pod": {"po", "pod", "pods"}}

// splitName parses [svc/][NAMESPACE/]NAME[:PORT[/PROTOCOL]]. The name of a pod with host ports is pod/NAME. namespace
// is the default for a name without a namespace.
func splitName(arg, namespace string) (inNamespace, name, port string, err error) {
	arg, port, _ = strings.Cut(arg, ":")
	parts := strings.Split(arg, "/")
	if len(parts) > 1 && slices.Contains(kinds["Service"], parts[0]) {
		parts = parts[1:]
	}
	if n := len(parts); n > 1 && parts[n-2] == "pod" {
		parts = append(parts[:n-2], "pod/"+parts[n-1])
	}
	if len(parts) == 2 {
		namespace, parts = parts[0], parts[1:]
	}
	if name = parts[0]; len(parts) > 1 || name == "" && namespace == "" {
		return "", "", "", fmt.Errorf("%q is not the name of a Service: use NAMESPACE/NAME, svc/NAME or an "+
			"address", arg)
	}
	return namespace, name, port, nil
}
