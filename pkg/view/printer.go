package view

import (
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"unicode/utf8"
)

// Style is a style of text for terminals with colours.
type Style string

// The styles. A style never carries meaning of its own: text without colours has the same content.
const (
	Plain Style = ""
	Good  Style = "\x1b[32m"
	Warn  Style = "\x1b[33m"
	Bad   Style = "\x1b[31m"
	Dim   Style = "\x1b[2m"
	Bold  Style = "\x1b[1m"
)

const endOfStyle = "\x1b[0m"

// Cell is one field of a table.
type Cell struct {
	Text string
	Style
}

// cells returns plain cells.
func cells(texts ...string) []Cell {
	row := make([]Cell, len(texts))
	for i, t := range texts {
		row[i] = Cell{Text: t}
	}
	return row
}

// Printer writes text. It keeps the first error of the writer, and writes nothing after it.
type Printer struct {
	// Color enables styles. Wide adds columns and details. NoHeaders leaves out the headers of tables.
	Color, Wide, NoHeaders bool

	to  io.Writer
	err error
}

// NewPrinter returns a printer without colours.
func NewPrinter(to io.Writer) *Printer { return &Printer{to: to} }

// Err returns the first error of writing.
func (p *Printer) Err() error { return p.err }

// Paint returns a text in a style.
func (p *Printer) Paint(s Style, text string) string {
	if !p.Color || s == Plain || text == "" {
		return text
	}
	return string(s) + text + endOfStyle
}

// Printf writes formatted text.
func (p *Printer) Printf(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.to, format, args...)
	}
}

// gap is the space between two columns.
const gap = 2

// Table writes a header and rows in columns. A nil header is omitted. The last column is not padded, and a row may have fewer
// cells than there are columns. The text of a row with one cell may be longer than the column. Control characters are replaced.
func (p *Printer) Table(header []string, rows [][]Cell) {
	if len(rows) == 0 {
		return
	}
	if len(header) > 0 && !p.NoHeaders {
		head := cells(header...)
		for i := range head {
			head[i].Style = Bold
		}
		rows = append([][]Cell{head}, rows...)
	}
	var widths []int
	for _, row := range rows {
		for i := range row {
			row[i].Text = Printable(row[i].Text)
			if i == len(widths) {
				widths = append(widths, 0)
			}
			if len(row) > 1 {
				widths[i] = max(widths[i], utf8.RuneCountInString(row[i].Text))
			}
		}
	}
	for _, row := range rows {
		p.row(row, widths)
	}
}

func (p *Printer) row(row []Cell, widths []int) {
	last := len(row) - 1
	for last >= 0 && row[last].Text == "" {
		last--
	}
	var line strings.Builder
	for i := 0; i <= last; i++ {
		line.WriteString(p.Paint(row[i].Style, row[i].Text))
		if i < last {
			line.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(row[i].Text)+gap))
		}
	}
	p.Printf("%s\n", line.String())
}

// maxWidth is the width of text that is wrapped.
const maxWidth = 119

// unbroken matches a word, or words in parentheses: these may be a command, which must stay on one line to be copied.
var unbroken = regexp.MustCompile(`\([^()]*\)\S*|\S+`)

// wrap returns rows of one cell each: a text, with line breaks between words, after an indent. Words in parentheses stay together
// if they fit.
func wrap(indent, text string, style Style) (rows [][]Cell) {
	tooLong := func(s string) bool { return utf8.RuneCountInString(indent+s) > maxWidth }
	line := ""
	for _, part := range unbroken.FindAllString(text, -1) {
		words := []string{part}
		if tooLong(part) {
			words = strings.Fields(part)
		}
		for _, word := range words {
			if line != "" && tooLong(line+" "+word) {
				rows, line = append(rows, []Cell{{indent + line, style}}), ""
			}
			line = strings.TrimSpace(line + " " + word)
		}
	}
	return append(rows, []Cell{{indent + line, style}})
}

// Count returns a number with a noun, such as 1 endpoint or 2 endpoints.
func Count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// plural returns a number with a noun that has an irregular plural.
func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// splitPort splits an address with a port.
func splitPort(at string) (addr, port string) {
	addr, port, err := net.SplitHostPort(at)
	if err != nil {
		return at, "0"
	}
	return addr, port
}

// Printable replaces characters that control a terminal.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return '?'
		}
		return r
	}, s)
}
