package page

import (
	"fmt"
	"html"
	"strings"
	"unicode/utf8"
)

// The measures of a terminal's picture: columns, and pixels.
const (
	columns    = 112
	charWidth  = 8
	lineHeight = 19
	margin     = 16
)

// Terminal returns an SVG picture of a terminal with a text: commands after "$ ", and their output. Longer lines than those of
// the terminal are continued on the next line.
func Terminal(text string) string {
	var lines []string
	for line := range strings.Lines(strings.TrimRight(text, "\n") + "\n") {
		rest := []rune(strings.TrimRight(line, "\n"))
		for len(rest) > columns {
			lines, rest = append(lines, string(rest[:columns])), rest[columns:]
		}
		lines = append(lines, string(rest))
	}
	var b strings.Builder
	width, height := columns*charWidth+2*margin, len(lines)*lineHeight+2*margin
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img">
<style>
text { font: 13.3px ui-monospace, SFMono-Regular, Menlo, "DejaVu Sans Mono", Consolas, monospace; white-space: pre; fill: #d6deeb }
.command { fill: #fff; font-weight: bold } .problem { fill: #ff7b72 } .good { fill: #7ee787 } .note { fill: #8b98a9 }
</style>
<rect width="100%%" height="100%%" rx="8" fill="#0d1117"/>
`, width, height, width, height)
	for i, line := range lines {
		if line == "" {
			continue
		}
		// The length of a line does not depend on the reader's font.
		fmt.Fprintf(&b, `<text x="%d" y="%d" textLength="%d" xml:space="preserve"%s>%s</text>`+"\n",
			margin, margin+14+i*lineHeight, utf8.RuneCountInString(line)*charWidth, class(line), html.EscapeString(line))
	}
	return b.String() + "</svg>\n"
}

// class returns the attribute of a line that has a colour of its own.
func class(line string) string {
	for _, c := range []struct{ prefix, name string }{
		{"$ ", "command"}, {"PROBLEM", "problem"}, {"WRONG", "problem"}, {"note:", "note"}, {"No problem", "good"}, {"health     healthy", "good"}, {"100 %", "good"},
	} {
		if strings.HasPrefix(strings.TrimLeft(line, " "), c.prefix) {
			return ` class="` + c.name + `"`
		}
	}
	return ""
}
