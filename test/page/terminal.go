package page

import (
	"fmt"
	"html"
	"regexp"
	"slices"
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

// classes are the attributes of the styles of pkg/view, by the sequences that begin them. The sequence \x1b[0m ends a
// style.
var classes = map[string]string{
	"\x1b[32m": ` class="good"`, "\x1b[33m": ` class="warn"`, "\x1b[31m": ` class="bad"`,
	"\x1b[2m": ` class="dim"`, "\x1b[1m": ` class="bold"`,
}

// style matches a sequence at the beginning of a text.
var style = regexp.MustCompile(`^\x1b\[\d*m`)

// character is a character of the terminal with its class.
type character struct {
	text  rune
	class string
}

// Terminal returns an SVG picture of a terminal with a text: commands after "$ ", and their output with its colours. It
// continues long lines on the next line, after a space.
func Terminal(text string) string {
	var lines [][]character
	for line := range strings.Lines(strings.TrimRight(text, "\n") + "\n") {
		lines = append(lines, wrap(read(strings.TrimRight(line, "\n")))...)
	}
	var b strings.Builder
	width, height := columns*charWidth+2*margin, len(lines)*lineHeight+2*margin
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img">
<style>
text { font: 13.3px ui-monospace, SFMono-Regular, Menlo, "DejaVu Sans Mono", Consolas, monospace; white-space: pre; fill: #d6deeb }
.bold { fill: #fff; font-weight: bold } .bad { fill: #ff7b72 } .warn { fill: #e3b341 }
.good { fill: #7ee787 } .dim { fill: #8b98a9 }
</style>
<rect width="100%%" height="100%%" rx="8" fill="#0d1117"/>
`, width, height, width, height)
	for i, line := range lines {
		for from, to := 0, 0; from < len(line); from = to {
			var part strings.Builder
			for ; to < len(line) && line[to].class == line[from].class; to++ {
				part.WriteRune(line[to].text)
			}
			// The length of a part does not depend on the reader's font.
			fmt.Fprintf(&b, `<text x="%d" y="%d" textLength="%d" xml:space="preserve"%s>%s</text>`+"\n",
				margin+from*charWidth, margin+14+i*lineHeight, (to-from)*charWidth, line[from].class,
				html.EscapeString(part.String()))
		}
	}
	return b.String() + "</svg>\n"
}

// read returns the characters of a line, without the sequences that begin and end its styles.
func read(line string) (all []character) {
	class := ""
	if strings.HasPrefix(line, "$ ") {
		class = classes["\x1b[1m"]
	}
	for line != "" {
		if style := style.FindString(line); style != "" {
			class, line = classes[style], line[len(style):]
			continue
		}
		c, size := utf8.DecodeRuneInString(line)
		all, line = append(all, character{c, class}), line[size:]
	}
	return all
}

// wrap divides a line that is longer than the terminal. The rest has the indentation of the line, and four spaces.
func wrap(line []character) (lines [][]character) {
	isText := func(c character) bool { return c.text != ' ' }
	indent := max(0, slices.IndexFunc(line, isText))
	for len(line) > columns {
		at := columns
		for at > indent+4 && isText(line[at]) {
			at--
		}
		if at == indent+4 {
			at = columns // no space
		}
		lines = append(lines, line[:at])
		rest := line[at:]
		rest = rest[max(0, slices.IndexFunc(rest, isText)):]
		line = append(slices.Repeat([]character{{text: ' '}}, indent+4), rest...)
	}
	return append(lines, line)
}
