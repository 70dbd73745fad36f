package view

// DiffLine is an object that is only in the kernel's table, or only in the wanted one.
type DiffLine struct {
	// Wanted is true for an object that is missing in the kernel, and false for an unwanted one.
	Wanted bool `json:"wanted"`
	// Where is the family and the set or chain. Text is the element or rule in nft's language, or "" for the set or chain itself.
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
	Differences []DiffLine `json:"differences"`
}

// Text writes a coloured line for each object.
func (d *Diff) Text(p *Printer) {
	for _, l := range d.Differences {
		style := Bad
		if l.Wanted {
			style = Good
		}
		p.Printf("%s\n", p.Paint(style, Printable(l.String())))
	}
}
