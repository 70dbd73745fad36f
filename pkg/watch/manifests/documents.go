package manifests

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"regexp"

	"sigs.k8s.io/yaml"
)

// document is one YAML document of a file.
type document struct {
	text []byte
	// line is the number of the document's first line in the file.
	line int
}

// split returns the documents of a file in UTF-8 that have content. It finds the separators before any document is
// parsed, so an invalid document cannot hide the next one.
func split(content []byte) []document {
	return cut(content, 1, func(line, _ []byte) (skip int, found bool) { return len("---"), isSeparator(line) })
}

// resplit splits a text that cannot be parsed because the separator between two documents is missing or misspelt. A new
// document starts after a misspelt separator, at a line that begins with a brace, and at a line with the field
// apiVersion or kind if the current document already has this field.
func resplit(d document) []document {
	seen := map[string]bool{}
	return cut(d.text, d.line, func(line, rest []byte) (skip int, found bool) {
		if brokenSeparator.Match(line) && beginning.Match(withContent(rest)) {
			clear(seen)
			return len(line), true
		}
		key := string(beginning.Find(line))
		if found = seen[key] || key == "{"; found {
			clear(seen)
		}
		if key != "" {
			seen[key] = true
		}
		return 0, found
	})
}

// withContent returns the text without leading empty lines and comments.
func withContent(text []byte) []byte {
	for len(text) > 0 {
		line, rest, _ := bytes.Cut(text, []byte("\n"))
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' {
			break
		}
		text = rest
	}
	return text
}

// brokenSeparator matches misspelt separators; beginning matches the start of a document.
var brokenSeparator, beginning = regexp.MustCompile(`^\s*--[-\s]*$`), regexp.MustCompile(`^(?:apiVersion:|kind:|\{)`)

// isSeparator reports whether a line ends a document (YAML 1.2, section 9.1.2).
func isSeparator(line []byte) bool {
	rest, found := bytes.CutPrefix(line, []byte("---"))
	if !found {
		rest, found = bytes.CutPrefix(line, []byte("..."))
	}
	return found && (len(rest) == 0 || bytes.IndexByte([]byte(" \t\r\n"), rest[0]) >= 0)
}

// cut splits a text before each line for which begins returns true. It drops the first skip bytes of this line. number
// is the line number of the start of the text.
func cut(text []byte, number int, begins func(line, rest []byte) (skip int, found bool)) (list []document) {
	start, first := 0, number
	add := func(end, next int) {
		if d := (document{text[start:end], first}); d.hasContent() {
			list = append(list, d.trimmed())
		}
		start, first = next, number
	}
	for at := 0; at < len(text); number++ {
		end := len(text)
		if i := bytes.IndexByte(text[at:], '\n'); i >= 0 {
			end = at + i + 1
		}
		if skip, found := begins(text[at:end], text[end:]); found {
			add(at, at+skip)
		}
		at = end
	}
	add(len(text), len(text))
	return list
}

// hasContent reports whether the document has more than comments and directives.
func (d document) hasContent() bool {
	for line := range bytes.Lines(d.text) {
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' && line[0] != '%' && !isSeparator(line) {
			return true
		}
	}
	return false
}

// trimmed returns the document without leading empty lines.
func (d document) trimmed() document {
	for {
		line, rest, found := bytes.Cut(d.text, []byte("\n"))
		if !found || len(bytes.TrimSpace(line)) > 0 {
			return d
		}
		d = document{rest, d.line + 1}
	}
}

// values returns the content of a document as JSON. A YAML document has one value, and a JSON document may have
// several. A duplicate field in YAML is an error.
func (d document) values() ([]json.RawMessage, error) {
	if text := bytes.TrimSpace(d.text); len(text) > 0 && text[0] == '{' {
		list, err := stream(text)
		if err == nil || len(list) > 0 {
			return list, err
		}
		// The YAML parser would ignore any text after a value in braces.
		if len(resplit(d)) > 1 {
			return nil, err
		}
	}
	value, err := yaml.YAMLToJSONStrict(d.text)
	return []json.RawMessage{value}, err
}

// stream returns the values of a JSON text.
func stream(text []byte) (list []json.RawMessage, err error) {
	for d := json.NewDecoder(bytes.NewReader(text)); ; {
		var value json.RawMessage
		switch err := d.Decode(&value); {
		case errors.Is(err, io.EOF):
			return list, nil
		case err != nil:
			return list, err
		}
		list = append(list, value)
	}
}
