package view

// Preflight is the result of the checks of a node before an installation.
type Preflight struct {
	SchemaVersion int    `json:"schemaVersion"`
	Node          string `json:"node"`
	// Ready is true if no finding is wrong: [Preflight.Conclude] sets it.
	Ready bool `json:"ready"`
	// Checks are the results, one for each check.
	Checks   []Check  `json:"checks"`
	Findings Findings `json:"findings"`
}

// Check is a check and its result.
type Check struct {
	Name   string `json:"name"`
	Result string `json:"result"`
}

// Add adds the result of a check, and the findings that follow from it.
func (v *Preflight) Add(name, result string, findings ...Finding) {
	v.Checks = append(v.Checks, Check{name, result})
	v.Findings = append(v.Findings, findings...)
}

// Conclude sorts the findings, and sets Ready.
func (v *Preflight) Conclude() {
	v.Findings.Sort()
	v.Ready = !v.Findings.Wrong()
}

// Text writes one line for each check, and the findings.
func (v *Preflight) Text(p *Printer) {
	var rows [][]Cell
	for _, c := range v.Checks {
		rows = append(rows, []Cell{{c.Name, Bold}, {Text: c.Result}})
	}
	p.Table(nil, rows)
	p.Printf("\n")
	printFindings(p, v.Findings, "No problem found: node "+v.Node+" is ready for kube-nftproxy.")
}
