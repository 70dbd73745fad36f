// Command tokens measures the size of Go code.
//
// In: folders, as arguments.
// Out: the tokens of their Go files, the tokens per line, and the share of lines wider than 120 columns. A tab counts
// as four columns. Tests do not count.
// Never: a change to a file.
package main

import (
	"fmt"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const mostColumns = 120

// size is the size of Go code.
type size struct{ lines, tokens, wide int }

func main() {
	var s size
	for _, folder := range os.Args[1:] {
		err := filepath.WalkDir(folder, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			s.add(text)
			return err
		})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	lines := float64(max(s.lines, 1))
	fmt.Printf("%d tokens, %.1f per line, %.1f %% of %d lines are wider than %d columns\n",
		s.tokens, float64(s.tokens)/lines, 100*float64(s.wide)/lines, s.lines, mostColumns)
}

// add adds the text of a file.
func (s *size) add(text []byte) {
	for line := range strings.Lines(string(text)) {
		s.lines++
		if len(strings.ReplaceAll(line, "\t", "    ")) > mostColumns+len("\n") {
			s.wide++
		}
	}
	var words scanner.Scanner
	set := token.NewFileSet()
	words.Init(set.AddFile("", -1, len(text)), text, nil, 0)
	for {
		switch _, tok, literal := words.Scan(); {
		case tok == token.EOF:
			return
		case tok != token.SEMICOLON || literal != "\n": // the scanner inserts one at the end of a line
			s.tokens++
		}
	}
}
