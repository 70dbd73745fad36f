package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/google/licenseclassifier/v2"
	"github.com/google/licenseclassifier/v2/assets"
)

// allowed are the licenses that may be in the image: it does what they ask for, which is to pass on their text and to say
// where the source is.
var allowed = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MPL-2.0"}

// Files with these names hold licenses, or what has to be passed on beside them.
var (
	licenseName = regexp.MustCompile(`(?i)^(.+[._-])?(licen[cs]es?|copying|unlicense)([._-].+)?$`)
	noticeName  = regexp.MustCompile(`(?i)^(notices?|patents|copyright)([._-].+)?$`)
)

// unused are license files of the standard library for what only other builds link: BoringSSL, with GOEXPERIMENT=boringcrypto.
var unused = []string{"src/crypto/internal/boring/LICENSE"}

// slack is the number of words that a license file may have beside each license, such as what it applies to.
const slack = 40

// text is a license file.
type text struct {
	// name is the file's, relative to its component's folder.
	name    string
	content []byte
	// licenses are the names that SPDX has for what the file holds; none if it is a notice.
	licenses []string
}

// recogniser knows licenses by their words.
type recogniser struct{ *classifier.Classifier }

func newRecogniser() (recogniser, error) {
	c, err := assets.DefaultClassifier()
	return recogniser{c}, err
}

// texts reads the license files in some folders of a component, whose names are relative to its own.
func (r recogniser) texts(component fs.FS, dirs map[string]bool) (out []text, err error) {
	for dir := range dirs {
		entries, err := fs.ReadDir(component, dir)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			isLicense := licenseName.MatchString(e.Name())
			file := path.Join(dir, e.Name())
			if e.IsDir() || path.Ext(file) == ".go" || slices.Contains(unused, file) || !isLicense && !noticeName.MatchString(e.Name()) {
				continue
			}
			t := text{name: file}
			if t.content, err = fs.ReadFile(component, file); err != nil {
				return nil, err
			}
			if isLicense {
				if t.licenses, err = r.classify(t.content); err != nil {
					return nil, fmt.Errorf("classify %s: %w", file, err)
				}
			}
			out = append(out, t)
		}
	}
	slices.SortFunc(out, func(a, b text) int { return strings.Compare(a.name, b.name) })
	if licenses(out) == nil {
		return nil, errors.New("no license file")
	}
	return out, nil
}

// classify returns the licenses in a file. All have to be allowed, and little else may be said.
func (r recogniser) classify(content []byte) (found []string, err error) {
	lines := bytes.Split(content, []byte("\n"))
	matches := 0
	for _, m := range r.Match(content).Matches {
		for i := m.StartLine - 1; i < min(m.EndLine, len(lines)); i++ {
			lines[i] = nil
		}
		if m.MatchType != "License" && m.MatchType != "Header" {
			continue // a copyright line
		}
		if !slices.Contains(allowed, m.Name) {
			return nil, fmt.Errorf("license %s isn't among those allowed (%s)", m.Name, strings.Join(allowed, ", "))
		}
		matches++
		found = append(found, m.Name)
	}
	if matches == 0 {
		return nil, errors.New("no license is recognised")
	}
	if n := len(bytes.Fields(bytes.Join(lines, []byte("\n")))); n > slack*matches {
		return nil, fmt.Errorf("beside %s there are %d words that belong to no known license", strings.Join(found, ", "), n)
	}
	slices.Sort(found)
	return slices.Compact(found), nil
}

// licenses lists what is in some license files.
func licenses(texts []text) (out []string) {
	for _, t := range texts {
		out = append(out, t.licenses...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// expression says in the words of SPDX that all licenses apply, each to a part.
func expression(licenses []string) string { return strings.Join(licenses, " AND ") }
