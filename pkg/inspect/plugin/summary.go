package plugin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// row is the row of a node in a summary. facts are the two columns between the state and the problems.
type row struct {
	node, state string
	facts       [2]string
	problems    []string
	// reasons are the reasons of the problems, each a word.
	reasons []string
	code    int
}

// question is a command whose answers a summary has in one table.
type question struct {
	header []string
	args   []string
	// owner names the pods in which the command runs, and selector selects them unless the command line does.
	owner, selector string
	// read sets the state, the facts and the problems from the JSON output.
	read func(r *row, text []byte) error
}

// questions are the commands with a summary.
var questions = map[string]question{
	"status": {
		header: []string{"NODE", "HEALTH", "VERSION", "LAST SYNC", "PROBLEMS"}, args: []string{"status", "-o", "json"},
		owner: "kube-nftproxy", selector: defaultSelector, read: readStatus,
	},
	"preflight": {
		header: []string{"NODE", "PREFLIGHT", "KERNEL", "PRESENT PROXY", "PROBLEMS"},
		args:   []string{"preflight", "--root=/host", "-o", "json"},
		owner:  "deploy/preflight", selector: "k8s-app=kube-nftproxy-preflight", read: readPreflight,
	},
}

// summary prints the answers of all nodes in one table, with problems first.
func (o *options) summary(ctx context.Context, q question) error {
	if o.selector == defaultSelector {
		o.selector = q.selector
	}
	list, err := o.pods(ctx, "")
	if err != nil {
		return err
	}
	rows := make([]row, len(list))
	o.each(list, func(i int, p proxyPod) { rows[i] = o.ask(ctx, q, p) })
	rows = append(rows, o.without(ctx, q, list)...)
	if len(rows) == 0 {
		return fmt.Errorf("no pods of %s (namespace %s, selector %q), and no Nodes", q.owner, o.namespace, o.selector)
	}
	slices.SortFunc(rows, func(a, b row) int { return cmp.Or(b.code-a.code, cmp.Compare(a.node, b.node)) })
	p := view.NewPrinter(o.out)
	cells := make([][]view.Cell, len(rows))
	healthy := 0
	for i, r := range rows {
		style := view.Good
		if r.code != exitFine {
			style = view.Bad
		} else {
			healthy++
		}
		o.code = max(o.code, r.code)
		cells[i] = []view.Cell{
			{Text: r.node}, {Text: r.state, Style: style}, {Text: cmp.Or(r.facts[0], "-")}, {Text: cmp.Or(r.facts[1], "-")}, {},
		}
	}
	left := 119 // the width of the last column: a line, without the other columns
	for column := range 4 {
		widest := len(q.header[column])
		for _, row := range cells {
			widest = max(widest, len(row[column].Text))
		}
		left -= widest + 2
	}
	for i, r := range rows {
		cells[i][4].Text = inShort(r.problems, max(left, 40))
	}
	p.Table(q.header, cells)
	p.Printf("\n%s, %d without a problem\n", view.Count(len(rows), "node"), healthy)
	printReasons(p, rows)
	return p.Err()
}

// printReasons prints the number of nodes for each reason of a problem, the most frequent one first.
func printReasons(p *view.Printer, rows []row) {
	nodes := map[string]int{}
	for _, r := range rows {
		slices.Sort(r.reasons)
		for _, reason := range slices.Compact(r.reasons) {
			nodes[reason]++
		}
	}
	reasons := slices.SortedFunc(maps.Keys(nodes), func(a, b string) int {
		return cmp.Or(nodes[b]-nodes[a], cmp.Compare(a, b))
	})
	var cells [][]view.Cell
	for _, reason := range reasons {
		cells = append(cells, []view.Cell{{Text: reason}, {Text: view.Count(nodes[reason], "node")}})
	}
	p.Table(nil, cells)
}

// inShort returns the first problem and the number of the other problems, in at most the given number of characters. It
// truncates the problem.
func inShort(problems []string, most int) string {
	if len(problems) == 0 {
		return "none"
	}
	text, more := []rune(problems[0]), ""
	if n := len(problems) - 1; n > 0 {
		more = fmt.Sprintf(" (and %d more)", n)
	}
	if most -= len(more); len(text) > most {
		text = append(text[:most-3], []rune("...")...)
	}
	return string(text) + more
}

// ask runs the command of a question on a node.
func (o *options) ask(ctx context.Context, q question, p proxyPod) row {
	const patience = time.Minute
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r := row{node: p.node, state: "no answer", code: exitUnable}
	var out, errs bytes.Buffer
	code, err := o.cluster.run(ctx, p, q.args, remotecommand.StreamOptions{Stdout: &out, Stderr: &errs})
	if err == nil && code == exitUnable {
		err = fmt.Errorf("%s", strings.TrimPrefix(strings.TrimSpace(errs.String()), "Error: "))
	}
	if err == nil {
		err = q.read(&r, out.Bytes())
	}
	if err != nil {
		r.problems = []string{err.Error()}
		return r
	}
	if r.code = code; code == exitWrong && len(r.problems) == 0 {
		r.problems = []string{"see kubectl nftproxy " + p.node + " " + q.args[0]}
	}
	return r
}

// wrong adds the findings that are wrong to the problems.
func (r *row) wrong(findings []view.Finding) {
	for _, f := range findings {
		if f.Severity == view.Wrong {
			r.problems, r.reasons = append(r.problems, f.What), append(r.reasons, string(f.Reason))
		}
	}
}

func readStatus(r *row, text []byte) error {
	var s view.Status
	if err := json.Unmarshal(text, &s); err != nil {
		return err
	}
	r.state, r.facts[0] = "healthy", s.Version
	if !s.Healthy {
		r.state = "unhealthy"
	}
	if s.Loop != nil && s.Loop.Last != nil {
		r.facts[1] = duration.HumanDuration(s.Time.Sub(s.Loop.Last.Time)) + " ago"
	}
	r.wrong(s.Findings)
	return nil
}

func readPreflight(r *row, text []byte) error {
	var v view.Preflight
	if err := json.Unmarshal(text, &v); err != nil {
		return err
	}
	r.state = "ready"
	if !v.Ready {
		r.state = "not ready"
	}
	for _, c := range v.Checks {
		for i, name := range []string{"kernel", "old proxy"} {
			if c.Name == name {
				r.facts[i], _, _ = strings.Cut(c.Result, ", answers at") // without the details
			}
		}
	}
	r.wrong(v.Findings)
	return nil
}

// without returns the Linux nodes without a pod, or none if the user may not list Nodes.
func (o *options) without(ctx context.Context, q question, list []proxyPod) (rows []row) {
	nodes, err := o.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil
	}
	has := map[string]bool{}
	for _, p := range list {
		has[p.node] = true
	}
	for i := range nodes.Items {
		if n := &nodes.Items[i]; !has[n.Name] && cmp.Or(n.Labels["kubernetes.io/os"], "linux") == "linux" {
			rows = append(rows, row{node: n.Name, state: "no pod", code: exitWrong,
				problems: []string{"no pod of " + q.owner + " on this node"}})
		}
	}
	return rows
}
