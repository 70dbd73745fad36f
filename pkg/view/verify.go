package view

import (
	"fmt"
	"slices"
)

// Verification is the result of a comparison of the kernel with the plan.
type Verification struct {
	// Generation is the kernel's generation number of the compared ruleset.
	Generation uint32 `json:"generation"`
	// Tables, Rules and Elements are the numbers of compared objects.
	Tables   int `json:"tables"`
	Rules    int `json:"rules"`
	Elements int `json:"elements"`
	// Differences are the first differences. Total is the number of all differences.
	Differences []Difference `json:"differences"`
	Total       int          `json:"total"`
	// Passing is a difference that only an earlier comparison found: it was a change in progress, or has been repaired.
	Passing *Difference `json:"passing,omitempty"`
	// Flows is absent unless the command searched connection tracking.
	Flows *Flows `json:"flows,omitempty"`
	// Findings follow from the other fields. [Verification.Conclude] sets them.
	Findings Findings `json:"findings"`
}

// ReportAndRestart returns the fix for a defect of the program on a node.
func ReportAndRestart(node string) string {
	return "run \"kube-nftproxy bundle\" for a bug report, then delete the pod of this program on node " + node
}

// Conclude sets the findings about a node.
func (v *Verification) Conclude(node string) {
	v.Findings = Findings{}
	if v.Total > 0 {
		v.Findings.Add(Wrong, TablesDiffer, "Node "+node,
			plural(v.Total, "rule or element differs", "rules or elements differ")+" from the plan",
			fmt.Sprintf("connections to %s may fail or reach a wrong endpoint", v.affected()),
			ReportAndRestart(node),
			"only the program on this node, which then rewrites its tables")
	}
	if v.Flows != nil {
		v.Findings = append(v.Findings, v.Flows.findings(node)...)
	}
}

// affected returns the Services of the listed differences. A rule or a set belongs to no single Service.
func (v *Verification) affected() string {
	var names []string
	for i := range v.Differences {
		name := v.Differences[i].Service
		if name == "" || len(v.Differences) < v.Total {
			return "the affected Services"
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return Names(slices.Compact(names), 0)
}

// Wrong reports whether any finding is wrong.
func (v *Verification) Wrong() bool { return v.Findings.Wrong() }

// First returns the first of the differences, or nil.
func (v *Verification) First() *Difference {
	if v == nil || len(v.Differences) == 0 {
		return nil
	}
	return &v.Differences[0]
}

// Difference is one difference of the kernel from the plan.
type Difference struct {
	Table string `json:"table"`
	// In is the set, map or chain. Key is the key of an element; it is empty if the difference concerns the whole
	// object.
	In  string `json:"in,omitempty"`
	Key string `json:"key,omitempty"`
	// Have is the content in the kernel, Want the content in the plan. An empty string means that the object is missing
	// there.
	Have string `json:"have,omitempty"`
	Want string `json:"want,omitempty"`
	// Service is the Service of the element, if known.
	Service string `json:"service,omitempty"`
}

// String returns the difference in words.
func (d *Difference) String() string {
	at := "table " + d.Table
	if d.In != "" {
		at += ", " + d.In
	}
	if d.Key != "" {
		at += ", " + d.Key
	}
	of := ""
	if d.Service != "" {
		of = " (" + d.Service + ")"
	}
	switch {
	case d.Have == "" && d.Want == "":
		return at + of + ": differs"
	case d.Have == "":
		return fmt.Sprintf("%s%s: missing, should be %s", at, of, d.Want)
	case d.Want == "":
		return fmt.Sprintf("%s%s: is %s, should not exist", at, of, d.Have)
	}
	return fmt.Sprintf("%s%s: is %s, should be %s", at, of, d.Have, d.Want)
}

// Text writes the findings, and a line for each difference and each flow.
func (v *Verification) Text(p *Printer) {
	if len(v.Findings) > 0 {
		printFindings(p, v.Findings, "No problem found.")
	}
	v.differences(p)
	if v.Flows != nil {
		v.Flows.text(p)
	}
}

func (v *Verification) differences(p *Printer) {
	if v.Total == 0 {
		p.Printf("%s: %s, %d rules and %d elements match the plan (ruleset generation %d).\n",
			p.Paint(Good, "OK"), Count(v.Tables, "table"), v.Rules, v.Elements, v.Generation)
		if v.Passing != nil {
			p.Printf("An earlier comparison found a difference that is gone now (a change in progress, or repaired): "+
				"%s\n", v.Passing)
		}
		return
	}
	for i := range v.Differences {
		p.Printf("%s %s\n", p.Paint(Bad, "DIFFERENT"), &v.Differences[i])
	}
	p.more(v.Total - len(v.Differences))
}
