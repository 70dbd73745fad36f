package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// printer writes the story, at most 100 columns wide, in colours where the output is a terminal and NO_COLOR is unset
// (https://no-color.org).
type printer struct {
	w       io.Writer
	colours bool
}

// The colours, as parameters of the terminal's "select graphic rendition".
const (
	bold    = "1"
	dim     = "2"
	red     = "1;31"
	green   = "32"
	cyan    = "36"
	magenta = "35"
	yellow  = "33"
)

func newPrinter(f *os.File) *printer {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	_, plain := os.LookupEnv("NO_COLOR")
	return &printer{w: f, colours: err == nil && !plain && os.Getenv("TERM") != "dumb"}
}

func (p *printer) paint(colour, s string) string {
	if !p.colours {
		return s
	}
	return "\x1b[" + colour + "m" + s + "\x1b[0m"
}

// line writes a line. An error of writing shows as SIGPIPE, which ends the demo.
func (p *printer) line(s string) { _, _ = fmt.Fprintln(p.w, s) }

func (p *printer) title(s string) {
	p.line("")
	p.line(p.paint(bold, s))
	p.line(strings.Repeat("─", utf8.RuneCountInString(s)))
}

func (p *printer) step(n int, s string) {
	p.line("")
	p.line(p.paint(bold, fmt.Sprintf(" %d  %s", n, s)))
}

// ok writes a statement that was checked.
func (p *printer) ok(s string) { p.line("    " + p.paint(green, "✓") + " " + s) }

func (p *printer) failed(s string) { p.line("    " + p.paint(red, "✗ "+s)) }

func (p *printer) note(s string) { p.line("    " + p.paint(dim, s)) }

// command writes what a reader would type to do the same.
func (p *printer) command(s string) { p.line("    " + p.paint(bold, "$ "+s)) }

// output writes the output of a command. Long lines continue below, indented.
func (p *printer) output(text string) {
	const width = 94
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		indent := line[:len(line)-len(strings.TrimLeft(line, " "))]
		for utf8.RuneCountInString(line) > width {
			cut := strings.LastIndex(string([]rune(line)[:width+1]), " ")
			if cut <= len(indent)+2 {
				break
			}
			p.line("      " + line[:cut])
			line = indent + "  " + line[cut+1:]
		}
		p.line(strings.TrimRight("      "+line, " "))
	}
}

// arrow writes who asks whom.
func (p *printer) arrow(from, what, to string) {
	p.line("    " + from + p.paint(dim, " ── "+what+" ──▶ ") + to)
}

// row is a name and a number, with the colour of its bar.
type row struct {
	name, colour string
	n            int
}

// barWidth is the length of the longest bar.
const barWidth = 36

// bars writes one bar for each row, in proportion to the largest.
func (p *printer) bars(rows []row) {
	largest := 1
	for _, r := range rows {
		largest = max(largest, r.n)
	}
	for _, r := range rows {
		bar := eighths(r.n * barWidth * 8 / largest)
		p.line(fmt.Sprintf("      %-9s %s %d", r.name, p.paint(r.colour, bar), r.n))
	}
}

// eighths is a bar of so many eighths of a column.
func eighths(n int) string {
	const parts = " ▏▎▍▌▋▊▉"
	bar := strings.Repeat("█", n/8)
	if rest := n % 8; rest > 0 {
		bar += string([]rune(parts)[rest])
	}
	return bar
}

// spark draws numbers as columns of different heights; nothing is a dot.
func spark(counts []int, largest int) string {
	const levels = "▁▂▃▄▅▆▇█"
	var b strings.Builder
	for _, n := range counts {
		if n == 0 {
			b.WriteRune('·')
			continue
		}
		b.WriteRune([]rune(levels)[min(7, n*8/(largest+1))])
	}
	return b.String()
}

// millis tells a duration in milliseconds, with two significant digits where that is less than ten, and a long one in seconds.
func millis(d time.Duration) string {
	ms := d.Seconds() * 1000
	switch {
	case ms >= 1000:
		return fmt.Sprintf("%.1f s", ms/1000)
	case ms >= 10:
		return fmt.Sprintf("%.0f ms", ms)
	case ms >= 1:
		return fmt.Sprintf("%.1f ms", ms)
	}
	return fmt.Sprintf("%.2f ms", ms)
}

// plural is a number with its noun.
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// batches is a number of batches.
func batches(n int) string {
	if n == 1 {
		return "1 batch"
	}
	return fmt.Sprintf("%d batches", n)
}
