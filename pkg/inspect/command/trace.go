package command

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/host"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/doctor"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/trace"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft/read"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// traceCommand follows a packet through the rules in the kernel.
func traceCommand() *cobra.Command {
	var q question
	var live bool
	var timeout time.Duration
	var namespace string
	cmd := &cobra.Command{
		Use:   "trace FROM ADDRESS:PORT[/PROTOCOL] | trace FROM svc/NAMESPACE/NAME[:PORT]",
		Short: "Show the path of the first packet of a connection, and the reasons for it",
		Long: `trace reads the rules and maps in the kernel of this node, and evaluates them for the first packet of a connection. It shows the
Service, the possible endpoints with their probabilities, and the source address that the endpoints see. If the packet is refused,
trace shows the reason. trace sends nothing. With --live, it waits for a real packet instead. It then shows the chains on the path of
the packet, the chain of another program that stops or translates the packet, the outgoing interface, and whether the endpoint answers.

FROM is the IP address of a pod or of another machine, "node" for the processes of this node, or pod/NAMESPACE/NAME for a pod that is
an endpoint of a Service. If the algorithm of the Service is maglev, the endpoint depends on the source port: set it, as in
198.51.100.7:40000. The protocol is tcp, udp or sctp; the default is tcp. Instead of an address, svc/NAMESPACE/NAME stands for the
cluster IP of a Service. Its PORT is a number or a name. Omit it if the Service has only one port.

The command queries the running program only for names, and for node ports on loopback, which the program serves itself. The exit
code is 0 if every path leads to an endpoint. With --live, it is 0 unless a rule stops the packet or the endpoint does not answer.
-o wide adds the rules that act on the packet.`,
		Example: `  kube-nftproxy trace 10.244.0.10 10.96.0.10:80
  kube-nftproxy trace node 10.96.0.10:53/udp -o wide
  kube-nftproxy trace pod/shop/cart-7d9f svc/shop/web:http
  kube-nftproxy trace 198.51.100.7 '[2001:db8::1]:30080/tcp' --live`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return fmt.Errorf("trace needs a source and a destination, such as %q; there are %d "+
					"arguments", "kube-nftproxy trace node svc/NAMESPACE/NAME", len(args))
			}
			return nil
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return []string{sentByNode}, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			from, to, err := q.resolve(cmd.Context(), namespace, args[0], args[1])
			if err != nil {
				return err
			}
			p, err := parsePacket(from, to)
			if err != nil {
				return err
			}
			if live {
				return q.followLive(cmd.OutOrStdout(), p, from != sentByNode, timeout)
			}
			t := q.onLoopback(cmd.Context(), p)
			if t == nil {
				t, _, _, err = predict(p, plan.Table(q.proxyName))
			}
			if err != nil {
				return err
			}
			return q.answerTrace(cmd.OutOrStdout(), t)
		},
	}
	q.flags(cmd)
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "Namespace of pods and Services without one.")
	cmd.Flags().BoolVar(&live, "live", false, "Wait for a real packet, and show its path through the kernel.")
	cmd.Flags().DurationVar(&timeout, "timeout", 30*time.Second, "Time to wait for a packet with --live.")
	return cmd
}

// sentByNode is the source of packets of the node's own processes.
const sentByNode = "node"

func parsePacket(from, to string) (p trace.Packet, err error) {
	where, name, given := strings.Cut(to, "/")
	protocol, known := inet.ParseProtocol(strings.ToLower(name))
	switch {
	case !given:
		protocol = inet.TCP
	case !known:
		return p, fmt.Errorf("unknown protocol %q: use ADDRESS:PORT/tcp, /udp or /sctp, or svc/NAMESPACE/NAME:PORT "+
			"for a Service", name)
	}
	at, err := model.ParseAddrPort(where)
	if err != nil {
		return p, fmt.Errorf("%q is not an address with a port: use ADDRESS:PORT/PROTOCOL, such as 10.96.0.10:80/tcp or [fd00::1]:80/tcp, or "+
			"svc/NAMESPACE/NAME:PORT for a Service", where)
	}
	var source netip.Addr
	var port uint16
	if from != sentByNode {
		client, withPort := model.ParseAddrPort(from)
		if source, err = model.ParseAddr(from); err != nil && withPort == nil {
			source, port, err = client.Addr(), client.Port(), nil
		}
		if err != nil {
			return p, fmt.Errorf("%q is not an IP address: use one, perhaps with a port, pod/NAMESPACE/NAME or %q "+
				"(kubectl get pods -o wide shows the addresses of pods)", from, sentByNode)
		}
	}
	p, err = trace.From(source, at, protocol, host.Routes{})
	p.FromPort = port
	return p, err
}

// predict reads the tables with a name, and evaluates them for a packet.
func predict(p trace.Packet, tables string) (*trace.Trace, *read.Table, []read.BaseChain, error) {
	conn, err := nft.Open()
	if err != nil {
		return nil, nil, nil, err
	}
	defer conn.Close() //nolint:errcheck // read only
	table, err := read.Load(conn, inet.FamilyOf(p.To.Addr()), tables)
	if err != nil {
		return nil, nil, nil, err
	}
	chains, err := read.BaseChains(conn, table.Family)
	if err != nil {
		return nil, nil, nil, err
	}
	t, err := trace.Follow(trace.Config{Table: table, Elements: conn, Routes: host.Routes{}, Chains: chains}, p)
	if err == nil {
		for _, legacy := range doctor.LegacyTables() {
			t.Also = append(t.Also, fmt.Sprintf("%s may have rules that stop it; to list them: %[1]s-save", legacy))
		}
	}
	return t, table, chains, err
}

// answerTrace prints the possible paths of a packet. A path that does not lead to an endpoint is a problem.
func (q *question) answerTrace(to io.Writer, t *trace.Trace) error {
	wrong := slices.ContainsFunc(t.Ways, func(w trace.Way) bool { return w.Outcome != trace.Translated || w.NoRoute })
	p := &t.Packet
	value := packetTrace{p.From, p.Interface, p.To, p.Protocol.String(), t}
	return q.answer(to, value, func(printer *view.Printer) { printTrace(printer, t) }, wrong)
}

// packetTrace is the JSON form of a trace.
type packetTrace struct {
	// From is not valid, and "" in JSON, if this node has no route to the destination, and so no address for it.
	From      netip.Addr     `json:"from"`
	Interface string         `json:"interface,omitempty"`
	To        netip.AddrPort `json:"to"`
	Protocol  string         `json:"protocol"`
	*trace.Trace
}

func printTrace(p *view.Printer, t *trace.Trace) {
	how := "sent by this node"
	switch {
	case !t.Packet.Own && t.Packet.Interface == "":
		how = "arrives by an unknown interface"
	case !t.Packet.Own:
		how = "arrives by " + t.Packet.Interface
	}
	p.Printf("%s, %s\n", t.Packet, how)
	printPort(p, t)
	if t.Why != "" {
		p.Printf("%s\n", p.Paint(view.Bad, t.Why))
	}
	p.Printf("\n")
	printWays(p, t.Ways)
	printList(p, "Hints:", t.Hints)
	printList(p, "Chains of other programs on the path (not evaluated):", t.Also)
	if p.Wide && len(t.Ways) > 0 {
		printSteps(p, t.Ways[0].Steps)
	}
}

func printPort(p *view.Printer, t *trace.Trace) {
	if t.Frontend != "" {
		p.Printf("Service port: %s\n", p.Paint(view.Bold, t.Frontend))
	}
}

// manyWays is the number of ways with the same reason that the output shows, unless it is wide.
const manyWays = 20

// printWays writes the reason once for all successive ways that share it, and then the ways.
func printWays(p *view.Printer, ways []trace.Way) {
	last := ""
	var rows [][]view.Cell
	flush := func() {
		shown := len(rows)
		if !p.Wide {
			shown = min(shown, manyWays)
		}
		p.Table(nil, rows[:shown])
		if n := len(rows) - shown; n > 0 {
			p.Printf("  and %d more; -o wide shows them\n", n)
		}
		rows = nil
	}
	for _, w := range ways {
		if w.Why != last {
			flush()
			p.Printf("%s\n", w.Why)
			last = w.Why
		}
		rows = append(rows, wayRow(w))
	}
	flush()
}

func wayRow(w trace.Way) []view.Cell {
	percent := strconv.FormatFloat(w.Probability*100, 'g', 3, 64)
	chance := view.Cell{Text: "  " + percent + " %"}
	switch w.Outcome {
	case trace.Translated:
		seen := "source kept: " + w.Source.String()
		if w.Masqueraded {
			seen = "masqueraded as " + w.Source.String() + ": " + w.MasqueradedWhy
		}
		where := "to " + w.To.String()
		style := view.Good
		switch {
		case w.NoRoute:
			where, style, seen = where+", no route from this node", view.Bad, ""
		case w.Here:
			where += " (this node)"
		}
		return []view.Cell{chance, {Text: where, Style: style}, {Text: seen}}
	case trace.Passed:
		return []view.Cell{chance, {Text: string(w.Outcome), Style: view.Good}, {Text: "source kept: " + w.Source.String()}}
	case trace.Refused, trace.Dropped:
		return []view.Cell{chance, {Text: strings.TrimSpace(string(w.Outcome) + " " + w.How), Style: view.Bad}}
	}
	return []view.Cell{chance, {Text: string(w.Outcome), Style: view.Warn}, {Text: "continues to " + w.To.String() + " with source " + w.Source.String()}}
}

func printList(p *view.Printer, title string, lines []string) {
	if len(lines) == 0 {
		return
	}
	p.Printf("\n%s\n", title)
	for _, l := range lines {
		p.Printf("  %s\n", l)
	}
}

func printSteps(p *view.Printer, steps []trace.Step) {
	p.Printf("\nRules that act on the packet, on the first of these paths:\n")
	for _, s := range steps {
		p.Printf("  %s %s: %s\n", s.Hook, s.Chain, s.Rule)
		for _, f := range s.Facts {
			p.Printf("      %s\n", p.Paint(view.Dim, factText(f)))
		}
	}
}

func factText(f trace.Fact) string {
	switch {
	case f.Did != "":
		return f.Did
	case f.Hash != nil:
		return fmt.Sprintf("its hash leads to slot %d", *f.Hash)
	case f.Drawn > 0:
		return fmt.Sprintf("draws one of %d numbers", f.Drawn)
	case f.Missing:
		return fmt.Sprintf("%s: no %s", f.Set, f.Key)
	}
	text := f.Set + ": " + f.Key
	if f.Value != "" {
		text += " : " + f.Value
	}
	if f.Comment != "" {
		text += "  # " + f.Comment
	}
	return text
}

// liveTable is the name of the table that marks packets.
const liveTable = "kube-nftproxy-trace"

// liveEvent is an event in words.
type liveEvent struct {
	Table string `json:"table"`
	Chain string `json:"chain"`
	// Text is the action in words, Rule the rule in nft's language.
	Text string `json:"text"`
	Rule string `json:"rule,omitempty"`
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
}

// quiet is the time without events of a packet after which its trace is complete.
const quiet = 300 * time.Millisecond

// followLive waits for a packet, and prints its events.
func (q *question) followLive(to io.Writer, p trace.Packet, fromGiven bool, timeout time.Duration) error {
	predicted, own, chains, err := predict(p, plan.Table(q.proxyName))
	if err != nil {
		return err
	}
	if p.Own && p.NoRoute { // the kernel sends no packet
		return q.answerTrace(to, predicted)
	}
	what := read.Traced{Family: own.Family, To: p.To, Protocol: p.Protocol}
	if fromGiven {
		what.From = p.From
	}
	tracer, err := read.Trace(liveTable+"-"+strconv.Itoa(unix.Getpid()), what)
	if err != nil {
		return err
	}
	defer func() { _ = tracer.Close() }() // after an error, the kernel deletes the table with the process
	events, err := firstPacket(tracer, timeout)
	if err == nil && len(events) == 0 {
		source := ""
		if fromGiven {
			source = p.From.String()
		}
		return missed(source, timeout)
	}
	if err != nil {
		return err
	}
	list := make([]liveEvent, 0, len(events))
	for _, e := range events {
		if endOfChain := e.Handle == 0 && !e.Policy; !e.Returned && !endOfChain {
			list = append(list, inWords(own, e))
		}
	}
	way := journey{events, own.Name, chains, p.Protocol, predicted}
	end := way.end()
	return q.answer(to, liveTrace{predicted.Frontend, list, end.text, end.stopped}, func(printer *view.Printer) {
		printPort(printer, predicted)
		printLive(printer, list, own.Name)
		printer.Printf("%s\n", end.text)
	}, end.stopped)
}

// liveTrace is the JSON form of the events.
type liveTrace struct {
	Frontend string      `json:"frontend"`
	Events   []liveEvent `json:"events"`
	End      string      `json:"end"`
	Stopped  bool        `json:"stopped"`
}

// firstPacket returns the events of the first packet that arrives, or none after the timeout. Other packets may
// follow without a pause, so only events of the first one delay the end.
func firstPacket(t *read.Tracer, timeout time.Duration) (own []read.TraceEvent, err error) {
	for deadline := time.Now().Add(timeout); time.Until(deadline) > 0; {
		events, err := t.Next(time.Until(deadline))
		if err != nil {
			return nil, err
		}
		for _, e := range events {
			if len(own) == 0 || e.ID == own[0].ID {
				own, deadline = append(own, e), time.Now().Add(quiet)
			}
		}
	}
	return own, nil
}

// inWords describes an event. For a rule of this program, the text has words; for a rule of another program, it has the
// handle of the rule.
func inWords(own *read.Table, e read.TraceEvent) liveEvent {
	l := liveEvent{Table: e.Table, Chain: e.Chain, Text: read.VerdictText(e.Verdict, e.Target)}
	if e.To.IsValid() {
		l.From, l.To = e.From.String(), e.To.String()
	}
	switch {
	case e.Policy:
		l.Text = "policy: " + l.Text
	case e.Table != own.Name:
		l.Text = fmt.Sprintf("rule with handle %d: %s", e.Handle, l.Text)
	default:
		if r := ruleOf(own, e); r != nil {
			l.Rule = own.RuleText(r)
			l.Text = trace.Words(own, r, e.Target)
		}
	}
	return l
}

func ruleOf(own *read.Table, e read.TraceEvent) *read.Rule {
	if ch := own.Chains[e.Chain]; ch != nil {
		for i := range ch.Rules {
			if ch.Rules[i].Handle == e.Handle {
				return &ch.Rules[i]
			}
		}
	}
	return nil
}

func printLive(p *view.Printer, list []liveEvent, table string) {
	from, to := "", ""
	own := false
	for _, l := range list {
		if l.To != "" && (l.From != from || l.To != to) {
			from, to = l.From, l.To
			p.Printf("%s\n", p.Paint(view.Bold, from+" -> "+to))
		}
		if strings.HasPrefix(l.Table, liveTable) {
			continue // this chain only marks the end of the packet's path
		}
		own = own || l.Table == table
		p.Printf("  %s %s: %s\n", l.Table, l.Chain, l.Text)
		if p.Wide && l.Rule != "" {
			p.Printf("      %s\n", p.Paint(view.Dim, l.Rule))
		}
	}
	if !own {
		p.Printf("No rule of table %s was evaluated.\n", table)
	}
}
