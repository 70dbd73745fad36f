package plugin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// health is the row of a node in the summary.
type health struct {
	node, state, version, lastSync string
	problems                       []string
	code                           int
}

// summary prints the health of all nodes in one table, with problems first.
func (o *options) summary(ctx context.Context) error {
	list, err := o.pods(ctx, "")
	if err != nil {
		return err
	}
	rows := make([]health, len(list))
	o.each(list, func(i int, p proxyPod) { rows[i] = o.health(ctx, p) })
	rows = append(rows, o.without(ctx, list)...)
	if len(rows) == 0 {
		return fmt.Errorf("no pods of kube-nftproxy (namespace %s, selector %q), and no Nodes", o.namespace, o.selector)
	}
	slices.SortFunc(rows, func(a, b health) int { return cmp.Or(b.code-a.code, cmp.Compare(a.node, b.node)) })
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
		cells[i] = []view.Cell{{Text: r.node}, {Text: r.state, Style: style}, {Text: dash(r.version)}, {Text: dash(r.lastSync)}, {}}
	}
	left := 119 // the width of the last column: a line, without the other columns
	for column := range 4 {
		widest := len("LAST SYNC")
		for _, row := range cells {
			widest = max(widest, len(row[column].Text))
		}
		left -= widest + 2
	}
	for i, r := range rows {
		cells[i][4].Text = inShort(r.problems, max(left, 40))
	}
	p.Table([]string{"NODE", "HEALTH", "VERSION", "LAST SYNC", "PROBLEMS"}, cells)
	p.Printf("\n%s, %d without a problem\n", view.Count(len(rows), "node"), healthy)
	return p.Err()
}

func dash(text string) string { return cmp.Or(text, "-") }

// inShort returns the first problem and the number of the other problems, in at most the given number of characters. It truncates the problem.
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

// health queries the status of a node.
func (o *options) health(ctx context.Context, p proxyPod) health {
	const patience = time.Minute
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	h := health{node: p.node, state: "no answer", code: exitUnable}
	var out, errs bytes.Buffer
	code, err := o.cluster.run(ctx, p, []string{"status", "-o", "json"}, streams{out: &out, err: &errs})
	var s view.Status
	if err == nil && code == exitUnable {
		err = fmt.Errorf("%s", strings.TrimPrefix(strings.TrimSpace(errs.String()), "Error: "))
	}
	if err == nil {
		err = json.Unmarshal(out.Bytes(), &s)
	}
	if err != nil {
		h.problems = []string{err.Error()}
		return h
	}
	h.code, h.state, h.version = code, "healthy", s.Version
	if !s.Healthy {
		h.state = "unhealthy"
	}
	if s.Loop != nil && s.Loop.Last != nil {
		h.lastSync = duration.HumanDuration(s.Time.Sub(s.Loop.Last.Time)) + " ago"
	}
	for _, f := range s.Findings {
		if f.Severity == view.Wrong {
			h.problems = append(h.problems, f.What)
		}
	}
	if code == exitWrong && len(h.problems) == 0 {
		h.problems = []string{"see kubectl nftproxy " + p.node + " status"}
	}
	return h
}

// without returns the Linux nodes without a pod of kube-nftproxy, or none if the user may not list Nodes.
func (o *options) without(ctx context.Context, list []proxyPod) (rows []health) {
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
			rows = append(rows, health{node: n.Name, state: "no pod", code: exitWrong, problems: []string{"no pod of kube-nftproxy on this node"}})
		}
	}
	return rows
}
