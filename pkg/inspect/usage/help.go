package usage

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// Width returns the number of characters in a line of the terminal, or 0 if the output is no terminal.
func Width(to io.Writer) int {
	f, ok := to.(*os.File)
	if !ok {
		return 0
	}
	width, _, _ := term.GetSize(int(f.Fd())) // 0 after an error
	return width
}

// FitHelp makes the help of a command and of its subcommands fit into the terminal.
func FitHelp(cmd *cobra.Command) {
	help := cmd.HelpFunc()
	cmd.SetHelpFunc(func(c *cobra.Command, args []string) {
		if width := Width(c.OutOrStdout()); width > 0 {
			c.Long = Fill(c.Long, width)
			wrapped := fmt.Sprintf(".FlagUsagesWrapped %d", width)
			c.SetUsageTemplate(strings.ReplaceAll(c.UsageTemplate(), ".FlagUsages", wrapped))
		}
		help(c, args)
	})
}

// Fill breaks the lines of a text at a width, after it has joined the lines of each paragraph. A line that begins with
// a space is a paragraph of its own. With the width 0, the text stays as it is.
func Fill(text string, width int) string {
	if width == 0 {
		return text
	}
	var paragraphs []string
	open := false
	for line := range strings.SplitSeq(text, "\n") {
		ordinary := line != "" && line[0] != ' '
		if open && ordinary {
			paragraphs[len(paragraphs)-1] += " " + line
		} else {
			paragraphs = append(paragraphs, line)
		}
		open = ordinary
	}
	for i, p := range paragraphs {
		paragraphs[i] = wrap(p, width)
	}
	return strings.Join(paragraphs, "\n")
}

// wrap breaks a line at spaces. In a list, the text of an item follows two spaces, and further lines begin below it.
func wrap(line string, width int) string {
	indent := 0
	if i := strings.LastIndex(line, "  "); i >= 0 {
		indent = i + 2
	}
	done := ""
	for len(line) > width {
		end := strings.LastIndexByte(line[:width+1], ' ')
		if end <= indent {
			break // a word that is longer than a line
		}
		done += line[:end] + "\n"
		line = strings.Repeat(" ", indent) + line[end+1:]
	}
	return done + line
}
