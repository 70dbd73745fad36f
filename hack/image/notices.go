package main

import (
	"bytes"
	"fmt"
	"strings"
	"text/tabwriter"
)

// notices is the text that the licenses ask to be passed on: a table of the components, and then each license file once,
// headed by the components that it comes with.
func (p *program) notices() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s for linux/%s contains:\n\n", p.components[0].path, p.components[0].version, p.arch)
	table := tabwriter.NewWriter(&b, 0, 1, 2, ' ', 0)
	var order []string // contents
	users := map[string][]string{}
	for _, c := range p.components {
		fmt.Fprintf(table, "%s\t%s\t%s\n", c.path, c.version, expression(licenses(c.texts)))
		for _, t := range c.texts {
			content := string(t.content)
			if users[content] == nil {
				order = append(order, content)
			}
			users[content] = append(users[content], fmt.Sprintf("%s %s: %s", c.path, c.version, t.name))
		}
	}
	_ = table.Flush() // into memory
	for _, content := range order {
		line := strings.Repeat("=", 120)
		fmt.Fprintf(&b, "\n%s\n%s\n%s\n\n%s\n", line, strings.Join(users[content], "\n"), line, strings.TrimRight(content, "\n"))
	}
	return b.Bytes()
}
