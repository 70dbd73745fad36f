// Package page keeps the parts of documents that programs write: tables of flags, metrics and figures. Such a part stands
// between the lines <!-- NAME --> and <!-- /NAME -->.
//
// In: a document, the name of a part. Out: the part, or the document with another one. Never: a change outside of the two
// lines.
package page

import (
	"fmt"
	"os"
	"strings"
)

// Part returns a part of a document.
func Part(text, name string) (string, error) {
	_, part, _, err := cut(text, name)
	return part, err
}

// With returns the document with another part of that name, which ends in a newline.
func With(text, name, part string) (string, error) {
	before, _, after, err := cut(text, name)
	return before + part + after, err
}

// Write writes a part of the document in a file.
func Write(file, name, part string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	text, err := With(string(b), name, part)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return os.WriteFile(file, []byte(text), 0o644)
}

func cut(text, name string) (before, part, after string, err error) {
	begin, end := "<!-- "+name+" -->\n", "<!-- /"+name+" -->\n"
	before, rest, begins := strings.Cut(text, begin)
	part, after, ends := strings.Cut(rest, end)
	if !begins || !ends {
		return "", "", "", fmt.Errorf("no lines %q and %q", begin, end)
	}
	return before + begin, part, end + after, nil
}
