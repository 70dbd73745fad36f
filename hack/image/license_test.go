package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/licenseclassifier/v2/assets"
)

// known returns the text of a license, from the recogniser's own collection.
func known(t *testing.T, name string) string {
	t.Helper()
	text, err := assets.ReadLicenseFile("License/" + name + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestClassify(t *testing.T) {
	r, err := newRecogniser()
	if err != nil {
		t.Fatal(err)
	}
	more := strings.Repeat("Whoever uses this software owes the authors a cake. ", 10)
	for _, tc := range []struct {
		name, text string
		want       []string
		err        string
	}{
		{name: "MIT", text: "Copyright (c) 2020 A. Uthor\n\n" + known(t, "MIT/pristine"), want: []string{"MIT"}},
		{name: "Apache", text: known(t, "Apache-2.0/pristine"), want: []string{"Apache-2.0"}},
		{name: "ISC", text: known(t, "ISC/license"), want: []string{"ISC"}},
		{name: "two", text: known(t, "MIT/pristine") + "\n\nSome files came from elsewhere:\n\n" + known(t, "BSD-3-Clause/pristine"), want: []string{"BSD-3-Clause", "MIT"}},
		{name: "copyleft", text: known(t, "GPL-3.0/license"), err: "license GPL-3.0 isn't among those allowed"},
		{name: "one of two", text: known(t, "MIT/pristine") + "\n\n" + known(t, "AGPL-3.0/license"), err: "license AGPL-3.0 isn't among those allowed"},
		{name: "unknown", text: more, err: "no license is recognised"},
		{name: "empty", err: "no license is recognised"},
		{name: "one more condition", text: known(t, "MIT/pristine") + "\n\n" + more, err: "beside MIT there are 90 words"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := r.classify([]byte(tc.text))
			if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
				t.Fatalf("classify() = %v, %v, want error %q", got, err, tc.err)
			}
			if diff := cmp.Diff(tc.want, got); tc.err == "" && diff != "" {
				t.Errorf("classify() (-want +got):\n%s", diff)
			}
		})
	}
}

// module makes a module in a folder and returns packages of it.
func module(t *testing.T, path string, files map[string]string, packages ...string) (out []linkedPackage) {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range packages {
		l := linkedPackage{ImportPath: path + "/" + p, Dir: filepath.Join(dir, p)}
		l.Module = &goModule{Path: path, Dir: dir}
		out = append(out, l)
	}
	return out
}

func TestFindLicenses(t *testing.T) {
	r, err := newRecogniser()
	if err != nil {
		t.Fatal(err)
	}
	mit, bsd, gpl := known(t, "MIT/pristine"), known(t, "BSD-3-Clause/pristine"), known(t, "GPL-3.0/license")
	forked := map[string]string{
		"LICENSE": mit, "NOTICE": "Thanks to all.", "license.go": "package a", "pkg/a.go": "package pkg",
		"third_party/forked/LICENSE.txt": bsd, "third_party/forked/deep/a.go": "package deep", "tool/COPYING": gpl,
	}
	for _, tc := range []struct {
		name       string
		components []component
		packages   []linkedPackage
		want       []string // files
		err        string
	}{
		{
			name: "of linked folders only", components: []component{{path: "m"}}, packages: module(t, "m", forked, "pkg", "third_party/forked/deep"),
			want: []string{"LICENSE MIT", "NOTICE ", "third_party/forked/LICENSE.txt BSD-3-Clause"},
		},
		{name: "not linked", components: []component{{path: "m"}}, packages: module(t, "m", forked, "pkg"), want: []string{"LICENSE MIT", "NOTICE "}},
		{name: "not allowed", components: []component{{path: "m"}}, packages: module(t, "m", forked, "tool"), err: "find licenses of m : classify tool/COPYING: license GPL-3.0"},
		{
			name: "none", components: []component{{path: "m", version: "v1.2.3"}},
			packages: module(t, "m", map[string]string{"NOTICE": "Thanks to all."}, "."), err: "find licenses of m v1.2.3: no license file",
		},
		{name: "linked, but not said", packages: module(t, "m", forked, "pkg"), err: "m is linked, but the program doesn't say so"},
		{name: "said, but not linked", components: []component{{path: "m", version: "v1"}}, err: "m v1: no package of it is linked"},
		{name: "no module", packages: []linkedPackage{{ImportPath: "m/a"}}, err: "m/a: it belongs to no module"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := findLicenses(r, tc.components, tc.packages, "")
			if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
				t.Fatalf("findLicenses() = %v, want error %q", err, tc.err)
			}
			if tc.err != "" {
				return
			}
			var got []string
			for _, text := range tc.components[0].texts {
				got = append(got, text.name+" "+expression(text.licenses))
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("texts (-want +got):\n%s", diff)
			}
		})
	}
}
