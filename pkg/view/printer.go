package view

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Style says how a piece of text stands out where there are colours.
type Style string

// The styles. Text without colours says the same: a style never carries meaning of its own.
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

// cells makes plain cells.
func cells(texts ...string) []Cell {
	row := make([]Cell, len(texts))
	for i, t := range texts {
		row[i] = Cell{Text: t}
	}
	return row
}

// Printer writes text for a person. The first error of the writer is kept, and nothing is written after it.
type Printer struct {
	// Color lets styles be seen. Wide shows columns and details that a narrow terminal has no room for.
	Color, Wide bool

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

// Table writes a header and rows in columns; without a header only the rows. The last column isn't padded, and a row may have
// fewer cells than there are columns. What an object's name could do to a terminal is taken out.
func (p *Printer) Table(header []string, rows [][]Cell) {
	if len(rows) == 0 {
		return
	}
	if len(header) > 0 {
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
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i].Text))
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

// count returns a number of things, as 1 endpoint or 2 endpoints.
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// Printable replaces characters that a terminal would obey.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return '?'
		}
		return r
	}, s)
}
