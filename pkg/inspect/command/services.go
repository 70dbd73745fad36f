package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/control"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// lister is the command services.
type lister struct {
	question
	selection
	onlyWrong, connecting, noHeaders, watching bool
	sortBy                                     string
}

func newServicesCommand() *cobra.Command {
	var l lister
	cmd := &cobra.Command{
		Use: "services [NAMESPACE/NAME | svc/NAME | NAMESPACE/ | ADDRESS[:PORT] | " +
			"NODEPORT]...", Aliases: []string{"svc", "service"},
		Short: "Show Services as this node serves them",
		Long: `Without names, services shows each address and port with its policy, affinity and endpoints. For names and addresses, it also shows
each endpoint with its pod, and the reason if an endpoint is not used: not ready, terminating, hinted to another zone, or not on this
node. An address finds the Services that have it as a cluster IP, a load-balancer IP or an external IP, or as an endpoint. A number finds
the Service with this node port.

-o wide puts all notes of an address on one line, and adds EndpointSlices. For names and addresses, and with --wrong, the exit code
is 1 if a Service has a problem, such as a port without endpoints. --try connects to the endpoints, to find closed ports, deleted pods
and paths that drop full-size packets (MTU). No application sees data. Without --try, no command sends packets to endpoints.`,
		Example: `  kube-nftproxy services -n shop
  kube-nftproxy services svc/shop/web 10.96.0.10
  kube-nftproxy services --sort-by .namespace -o jsonpath='{range .services[*]}{.name}{"\n"}{end}'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := l.parse(args); err != nil {
				return err
			}
			if _, err := newPath(l.sortBy); err != nil {
				return fmt.Errorf("read --sort-by: %w", err)
			}
			switch {
			case l.connecting && len(l.wanted) == 0:
				return errors.New("--try needs the name or the address of a Service")
			case l.watching && (l.connecting || slices.ContainsFunc(l.wanted, isAddress)):
				return errors.New("--watch accepts only names of Services, and excludes --try")
			case l.watching:
				return l.watch(cmd.Context())
			}
			return l.list(cmd.Context())
		},
	}
	l.question.flags(cmd, formatName)
	l.selection.flags(cmd, &l.question)
	f := cmd.Flags()
	f.StringVarP(&l.selector, "selector", "l", "", "Only Services with these labels, such as app=web. The program "+
		"queries the API server.")
	f.BoolVar(&l.noHeaders, "no-headers", false, "Print tables without headers and hints.")
	f.StringVar(&l.sortBy, "sort-by", "", "Sort Services by a field of their JSON form, as a JSONPath such as .name. "+
		"Default: namespace and name.")
	f.BoolVarP(&l.watching, "watch", "w", false, "After the list, print each Service that changes, until Ctrl-C.")
	f.BoolVar(&l.connecting, "try", false, "For names and addresses: connect to the endpoints from this node, and "+
		"show the results.")
	f.BoolVar(&l.onlyWrong, "wrong", false, "Show only the parts of Services that have a problem; exit code 1 if "+
		"there are any.")
	return cmd
}

// list prints the selected Services once.
func (l *lister) list(ctx context.Context) error {
	var v view.Services
	if err := l.get(ctx, l.client(), &v); err != nil {
		return err
	}
	fine := !l.connecting || try(ctx, &v)
	if err := l.show(&v); err != nil {
		return err
	}
	if len(v.NotFound) > 0 {
		return errors.New(strings.Join(v.NotFound, "\nError: "))
	}
	if (len(l.wanted) > 0 || l.onlyWrong) && v.Wrong() || !fine {
		return errWrong
	}
	return nil
}

// show prints Services in the selected form.
func (l *lister) show(v *view.Services) error {
	if l.onlyWrong {
		v.OnlyWrong()
	}
	if err := sortServices(v.Services, l.sortBy); err != nil {
		return err
	}
	l.names = func() (names []string) {
		for i := range v.Services {
			names = append(names, "service/"+v.Services[i].Namespace+"/"+v.Services[i].Name)
		}
		return names
	}
	if len(v.Services)+len(v.NotFound)+len(v.Unread) == 0 {
		where := ""
		if l.namespace != "" {
			where = " in namespace " + l.namespace
		}
		fmt.Fprintf(os.Stderr, "No Services found%s.\n", where)
	}
	text := v.Text
	if len(l.wanted) > 0 && !l.watching {
		text = v.Detail
	}
	if len(v.Services) == 0 && len(v.Unread) == 0 {
		text = func(*view.Printer) {}
	}
	return l.print(os.Stdout, v, func(p *view.Printer) {
		p.NoHeaders = l.noHeaders
		text(p)
	})
}

// sortServices sorts by the value of a JSONPath in the JSON form of a Service: numbers by value, all other values as
// text.
func sortServices(list []view.Service, template string) error {
	if template == "" {
		return nil
	}
	type keyed struct {
		number float64
		text   string
		view.Service
	}
	all, known := make([]keyed, len(list)), len(list) == 0
	for i, s := range list {
		value, err := generic(s)
		if err != nil {
			return err
		}
		path, err := newPath(template)
		if err != nil {
			return err
		}
		found, err := path.FindResults(value)
		if err != nil {
			return fmt.Errorf("read --sort-by: %w", err)
		}
		all[i].Service = s
		if len(found) > 0 && len(found[0]) > 0 {
			known = true
			all[i].text = fmt.Sprint(found[0][0].Interface())
			all[i].number, _ = strconv.ParseFloat(all[i].text, 64) // 0 for other text
		}
	}
	if !known {
		return fmt.Errorf("no Service has the field %s of --sort-by; -o json prints all fields", template)
	}
	slices.SortStableFunc(all, func(a, b keyed) int { return cmp.Or(cmp.Compare(a.number, b.number), cmp.Compare(a.text, b.text)) })
	for i := range all {
		list[i] = all[i].Service
	}
	return nil
}

// watch prints the selected Services. Then it prints each of these Services when a commit changes it.
func (l *lister) watch(ctx context.Context) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	shown := map[string]string{}
	// update prints the Services that have changed since their last output.
	update := func(names ...string) error {
		var v view.Services
		if err := l.get(ctx, l.client(), &v, names...); err != nil {
			return err
		}
		changed := v.Services[:0]
		for _, s := range v.Services {
			b, err := json.Marshal(withoutCounts(s))
			if err != nil {
				return err
			}
			if name := s.Namespace + "/" + s.Name; shown[name] != string(b) {
				shown[name] = string(b)
				changed = append(changed, s)
			}
		}
		if v.Services = changed; len(changed) == 0 && l.noHeaders {
			return nil
		}
		err := l.show(&v)
		l.noHeaders = true
		return err
	}
	var failed error
	begun := func() { failed = update() }
	err := control.Follow(ctx, l.client(), control.PageWatch, begun, func(c *view.Commit) error {
		if failed != nil || c.Why != "" || c.More > 0 || c.Lost > 0 {
			return cmp.Or(failed, update())
		}
		var names []string
		for _, change := range c.Services {
			switch {
			case !l.matches(change.Service):
			case change.What == "gone":
				delete(shown, change.Service)
				fmt.Fprintf(os.Stderr, "%s: no longer served\n", change.Service)
			default:
				names = append(names, change.Service)
			}
		}
		if len(names) == 0 {
			return nil
		}
		return update(names...)
	})
	return cmp.Or(failed, err)
}

// withoutCounts returns a Service without the numbers that change without a commit.
func withoutCounts(s view.Service) view.Service {
	s.Ports = slices.Clone(s.Ports)
	for i := range s.Ports {
		p := &s.Ports[i]
		p.Full, p.Frontends = 0, slices.Clone(p.Frontends)
		for j := range p.Frontends {
			p.Frontends[j].Connections, p.Frontends[j].Refused, p.Frontends[j].Dropped = nil, nil, 0
		}
	}
	return s
}
