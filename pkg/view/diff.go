package view

// DiffLine is an object that is only in the kernel's table, or only in the wanted one.
type DiffLine struct {
	// Wanted is true for an object that is missing in the kernel, and false for an unwanted one.
	Wanted bool `json:"wanted"`
	// Where is the family and the set or chain. Text is the element or rule in nft's language, or "" for the set or
	// chain itself.
	Where string `json:"where"`
	Text  string `json:"text,omitempty"`
}

// String returns the line in the format of diff.
func (l DiffLine) String() string {
	sign := "- "
	if l.Wanted {
		sign = "+ "
	}
	if l.Text == "" {
		return sign + l.Where
	}
	return sign + l.Where + ": " + l.Text
}

// Diff lists all differences.
type Diff struct {
	// Services are the Services whose elements differ. Shared are the other sets and chains that differ: they concern
	// this node, or more than one Service.
	Services    []Change   `json:"services,omitempty"`
	Shared      []string   `json:"shared,omitempty"`
	Differences []DiffLine `json:"differences"`
}

// mostChanges is the number of Services that the text of a [Diff] lists.
const mostChanges = 20

// Text writes the Services that differ, and then a coloured line for each object.
func (d *Diff) Text(p *Printer) {
	if len(d.Differences) == 0 {
		return
	}
	p.Printf("%s\n", p.Paint(Bold, plural(len(d.Services), "Service differs", "Services differ")))
	shown := d.Services
	if !p.Wide {
		shown = shown[:min(len(shown), mostChanges)]
	}
	for i := range shown {
		p.Printf("  %s\n", shown[i].text(p))
	}
	p.more(len(d.Services) - len(shown))
	if len(d.Shared) > 0 {
		p.Printf("Other differences, which concern this node or all Services: %s\n", Names(d.Shared, 0))
	}
	p.Printf("\n")
	for _, l := range d.Differences {
		style := Bad
		if l.Wanted {
			style = Good
		}
		p.Printf("%s\n", p.Paint(style, l.String()))
	}
}
