package view

import (
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/printable"
)

// Style is a style of text for terminals with colours.
type Style string

// The styles. Text without colours has the same meaning.
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

// Painted is printable text, with the sequences of its styles.
type Painted string

// Paint returns a text in a style. It escapes characters as [Printable] does.
func (p *Printer) Paint(s Style, text string) Painted {
	text = Printable(text)
	if !p.Color || s == Plain || text == "" {
		return Painted(text)
	}
	return Painted(string(s) + text + endOfStyle)
}

// Printf writes formatted text. It escapes characters of the arguments as [Printable] does, except those of painted
// text.
func (p *Printer) Printf(format string, args ...any) {
	for i, arg := range args {
		switch arg.(type) {
		case string, error, fmt.Stringer:
			args[i] = Printable(fmt.Sprint(arg))
		}
	}
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.to, format, args...)
	}
}

// gap is the space between two columns.
const gap = 2

// Table writes a header, unless it is nil, and rows in columns. A row may have fewer cells than there are columns. A
// row with a single cell does not widen the first column. Table escapes characters as [Printable] does.
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
		line.WriteString(string(p.Paint(row[i].Style, row[i].Text)))
		if i < last {
			line.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(row[i].Text)+gap))
		}
	}
	p.Printf("%s\n", Painted(line.String()))
}

// maxWidth is the number of characters of a line above which wrap breaks it.
const maxWidth = 119

// unbroken matches a word, or words in parentheses. Words in parentheses may be a command, which readers copy from one
// line.
var unbroken = regexp.MustCompile(`\([^()]*\)\S*|\S+`)

// wrap breaks a text into lines, and returns one row with one cell for each line. Each line begins with the indent.
// Words in parentheses stay together if they fit into a line.
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
	return plural(n, thing, thing+"s")
}

// Texts returns the texts of values.
func Texts[T fmt.Stringer](list []T) []string {
	texts := make([]string, len(list))
	for i, v := range list {
		texts[i] = v.String()
	}
	return texts
}

// MostNamed is the number of names that [Names] lists.
const MostNamed = 4

// Names returns the first names of a list and the number of the other ones, such as "a, b and 3 more". more is the
// number of names that the list does not contain.
func Names(list []string, more int) string {
	shown := list[:min(len(list), MostNamed)]
	if more += len(list) - len(shown); more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(shown, ", "), more)
	}
	return strings.Join(shown, ", ")
}

// more writes a line with the number of items that a list does not show, unless it is 0.
func (p *Printer) more(n int) {
	if n > 0 {
		p.Printf("... and %d more\n", n)
	}
}

// plural returns a number with a noun that has an irregular plural.
func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// splitPort splits an address with a port. Without a port, it returns port 0.
func splitPort(at string) (addr, port string) {
	addr, port, err := net.SplitHostPort(at)
	if err != nil {
		return at, "0"
	}
	return addr, port
}

// Printable returns a text without characters that a terminal would execute or reorder, see [printable.Text].
func Printable(s string) string { return printable.Text(s) }
