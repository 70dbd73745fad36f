package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
)

// program is a built program and what it is made of.
type program struct {
	content []byte
	arch    string
	// goVersion is the toolchain's, as in "go1.26.0".
	goVersion string
	// components are the module of the program, Go's standard library, and all other modules by name.
	components []component
}

// component is a module that is linked into a program, or the standard library.
type component struct {
	path, version string
	// sum is the module's checksum as in go.sum; empty for the program's own and for the standard library.
	sum string
	// texts are the license files that apply to what is linked.
	texts []text
}

// stdlib is the name that vulnerability databases have for Go's standard library.
const stdlib = "stdlib"

// readProgram reads a program and finds the licenses of everything in it.
func readProgram(ctx context.Context, r recogniser, file, version string) (*program, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	info, err := buildinfo.Read(bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	p := &program{content: content, goVersion: info.GoVersion}
	if p.arch, err = checkBuild(info); err != nil {
		return nil, err
	}
	packages, err := listPackages(ctx, info.Path, p.arch)
	if err != nil {
		return nil, err
	}
	goroot, err := goCommand(ctx, p.arch, "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	if p.components, err = components(info, version); err != nil {
		return nil, err
	}
	return p, findLicenses(r, p.components, packages, strings.TrimSpace(string(goroot)))
}

// checkBuild refuses a program that would not run in an empty image, or not be the same wherever it is built. It returns
// the program's architecture.
func checkBuild(info *debug.BuildInfo) (string, error) {
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	for key, want := range map[string]string{"GOOS": "linux", "CGO_ENABLED": "0", "-trimpath": "true", "vcs": "", "GOEXPERIMENT": ""} {
		if settings[key] != want {
			return "", fmt.Errorf("check how it was built: %s is %q, want %q", key, settings[key], want)
		}
	}
	return settings["GOARCH"], nil
}

// components lists what a program says it is made of.
func components(info *debug.BuildInfo, version string) ([]component, error) {
	out := []component{{path: info.Main.Path, version: version}, {path: stdlib, version: strings.TrimPrefix(info.GoVersion, "go")}}
	for _, m := range info.Deps {
		if m.Replace != nil {
			return nil, fmt.Errorf("list modules: %s is replaced by %s", m.Path, m.Replace.Path)
		}
		out = append(out, component{path: m.Path, version: m.Version, sum: m.Sum})
	}
	slices.SortFunc(out[2:], func(a, b component) int { return strings.Compare(a.path, b.path) })
	return out, nil
}

// linkedPackage is what "go list" says of a package.
type linkedPackage struct {
	ImportPath, Dir string
	Standard        bool
	Module          *goModule
}

// goModule is what "go list" says of a package's module.
type goModule struct{ Path, Dir string }

// component returns the name of the component that a package belongs to, and that component's folder.
func (p linkedPackage) component(goroot string) (name, dir string, err error) {
	switch {
	case p.Standard:
		return stdlib, goroot, nil
	case p.Module == nil || p.Module.Dir == "":
		return "", "", fmt.Errorf("find package %s: it belongs to no module that is here", p.ImportPath)
	}
	return p.Module.Path, p.Module.Dir, nil
}

// goCommand runs the go command for an architecture in the module around the working directory, and returns what it prints.
func goCommand(ctx context.Context, arch string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+arch, "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s: %w", args[0], err)
	}
	return out, nil
}

// listPackages lists the packages that are linked into a program.
func listPackages(ctx context.Context, path, arch string) (out []linkedPackage, err error) {
	text, err := goCommand(ctx, arch, "list", "-deps", "-json=ImportPath,Dir,Standard,Module", path)
	if err != nil {
		return nil, err
	}
	for decoder := json.NewDecoder(bytes.NewReader(text)); ; {
		var p linkedPackage
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return out, nil
		} else if err != nil {
			return nil, fmt.Errorf("list packages: %w", err)
		}
		out = append(out, p)
	}
}

// findLicenses fills in the texts of components: the license files in the folders of all linked packages and in those above
// them, up to the component's own. It fails if packages and components aren't of the same modules, or if one has no license.
func findLicenses(r recogniser, all []component, packages []linkedPackage, goroot string) error {
	dirs := map[string]map[string]bool{} // component, then folder in it that may have license files
	roots := map[string]string{}
	for _, p := range packages {
		name, root, err := p.component(goroot)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, p.Dir)
		if err != nil || !filepath.IsLocal(dir) {
			return fmt.Errorf("find package %s: %s is not in %s", p.ImportPath, p.Dir, root)
		}
		if dirs[name] == nil {
			dirs[name], roots[name] = map[string]bool{".": true}, root
		}
		for dir := filepath.ToSlash(dir); dir != "."; dir = path.Dir(dir) {
			dirs[name][dir] = true
		}
	}
	for i, c := range all {
		if dirs[c.path] == nil {
			return fmt.Errorf("find licenses of %s %s: no package of it is linked: was the program built from other source?", c.path, c.version)
		}
		var err error
		if all[i].texts, err = r.texts(os.DirFS(roots[c.path]), dirs[c.path]); err != nil {
			return fmt.Errorf("find licenses of %s %s: %w", c.path, c.version, err)
		}
		delete(dirs, c.path)
	}
	for name := range dirs {
		return fmt.Errorf("find licenses: %s is linked, but the program doesn't say so: was it built from other source?", name)
	}
	return nil
}
