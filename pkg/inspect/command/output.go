package command

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/yaml"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// Exit codes of the commands. The daemon exits as kube-proxy does: with 0, or with 1 after any error.
const (
	exitFine = 0
	// exitWrong means that the command has found a problem.
	exitWrong = 1
	// exitUnable means that the command failed.
	exitUnable = 2
)

// exitCodes is the list of exit codes in the help of each command and in docs/debugging.md.
var exitCodes = []struct {
	code    int
	meaning string
}{
	{exitFine, "success, no problem found"},
	{exitWrong, "the command has found a problem"},
	{exitUnable, "the command failed: wrong usage, no such object, no answer from the running program or the kernel, " +
		"or no packet"},
}

// errWrong is the error of a command that has found and printed problems. The exit code is then 1, without another
// message.
var errWrong = errors.New("something is wrong")

// output prints the result of a command. The command calls flags to add the flags, and print with the result.
type output struct {
	format string
	color  string
	// template is the value of -o jsonpath= or -o custom-columns=.
	template string
	// names returns the lines of -o name; nil if the command has no such format.
	names func() []string
}

// The formats of -o.
const (
	formatTable    = "table"
	formatWide     = "wide"
	formatJSON     = "json"
	formatYAML     = "yaml"
	formatJSONPath = "jsonpath"
	formatColumns  = "custom-columns"
	formatName     = "name"
)

var whenToColor = []string{"auto", "always", "never"}

// flags adds -o and --color. more are the additional formats of the command.
func (o *output) flags(cmd *cobra.Command, more ...string) {
	o.format, o.color = formatTable, "auto"
	words := slices.Concat([]string{formatTable, formatWide}, more,
		[]string{formatJSON, formatYAML, formatJSONPath + "=TEMPLATE", formatColumns + "=NAME:PATH,..."})
	cmd.Flags().VarP(&formatFlag{o, words}, "output", "o", "Format: "+strings.Join(words, ", "))
	cmd.Flags().Var(&oneOf{&o.color, whenToColor}, "color", "Use of colours: always, never, or auto (on a terminal, "+
		"unless NO_COLOR is set).")
	complete(cmd, "output", append(slices.Clone(words[:len(words)-2]), formatJSONPath+"=", formatColumns+"="))
	complete(cmd, "color", whenToColor)
}

// formatFlag is the flag -o.
type formatFlag struct {
	*output
	words []string
}

// String implements pflag.Value.
func (v *formatFlag) String() string { return v.format }

// Type returns the name of the value in --help.
func (v *formatFlag) Type() string { return "string" }

// Set implements pflag.Value. As with kubectl, a template needs no braces.
func (v *formatFlag) Set(s string) error {
	name, template, found := strings.Cut(s, "=")
	if name != formatJSONPath && name != formatColumns || !found {
		return (&oneOf{&v.format, v.words}).Set(s)
	}
	v.format, v.template = name, template
	if name == formatColumns {
		_, _, err := columnsOf(template)
		return err
	}
	_, err := newPath(template)
	return err
}

// newPath parses a JSONPath template.
func newPath(template string) (*jsonpath.JSONPath, error) {
	if !strings.Contains(template, "{") {
		template = "{." + strings.TrimPrefix(template, ".") + "}"
	}
	path := jsonpath.New("output").AllowMissingKeys(true)
	return path, path.Parse(template)
}

// generic returns the JSON form of a value as maps and lists. Whole numbers stay exact.
func generic(value any) (out any, err error) {
	b, err := json.Marshal(value)
	if err == nil {
		err = utiljson.Unmarshal(b, &out)
	}
	return out, err
}

// complete adds shell completion of a flag with a list of words.
func complete(cmd *cobra.Command, flag string, words []string) {
	if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // the command lacks the flag
	}
}

// apiVersion is the version of the JSON forms of all commands.
const apiVersion = "kube-nftproxy.io/v1alpha1"

// object returns the JSON form of a value, which begins with kind and apiVersion as a Kubernetes object. The kind
// is the name of the value's type.
func object(value any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(value); err != nil {
		return nil, err
	}
	kind := reflect.Indirect(reflect.ValueOf(value)).Type().Name()
	head := fmt.Sprintf(`{"kind":%q,"apiVersion":%q,`, strings.ToUpper(kind[:1])+kind[1:], apiVersion)
	fields := bytes.TrimPrefix(bytes.TrimSpace(b.Bytes()), []byte("{"))
	if string(fields) == "}" {
		head = strings.TrimSuffix(head, ",")
	}
	return append([]byte(head), fields...), nil
}

// print writes a value in the selected format. For table and wide, text writes it.
func (o *output) print(to io.Writer, value any, text func(*view.Printer)) error {
	switch o.format {
	case formatTable, formatWide:
		p := o.printer(to)
		text(p)
		return p.Err()
	case formatName:
		_, err := io.WriteString(to, strings.Join(append(o.names(), ""), "\n"))
		return err
	}
	b, err := object(value)
	if err != nil {
		return err
	}
	switch o.format {
	case formatJSON:
		var indented bytes.Buffer
		if err = json.Indent(&indented, b, "", "  "); err == nil {
			_, err = fmt.Fprintf(to, "%s\n", indented.Bytes())
		}
		return err
	case formatYAML:
		if b, err = yaml.JSONToYAML(b); err == nil {
			_, err = to.Write(b)
		}
		return err
	}
	var fields any
	if err := utiljson.Unmarshal(b, &fields); err != nil {
		return err
	}
	if o.format == formatColumns {
		return o.writeColumns(to, fields)
	}
	path, err := newPath(o.template)
	if err == nil {
		err = path.Execute(to, fields)
	}
	if err == nil && isTerminal(to) {
		_, err = io.WriteString(to, "\n")
	}
	return err
}

// answer prints a value. It returns errWrong if the value has a problem.
func (o *output) answer(to io.Writer, value any, text func(*view.Printer), wrong bool) error {
	err := o.print(to, value, text)
	if err == nil && wrong {
		return errWrong
	}
	return err
}

// columnsOf parses NAME:PATH,...
func columnsOf(template string) (header []string, paths []*jsonpath.JSONPath, err error) {
	for column := range strings.SplitSeq(template, ",") {
		name, field, found := strings.Cut(column, ":")
		path, err := newPath(field)
		if !found || err != nil {
			return nil, nil, fmt.Errorf("column %q is not NAME:PATH", column)
		}
		header, paths = append(header, name), append(paths, path)
	}
	return header, paths, nil
}

// writeColumns writes the custom columns: one row for each item of the first list of the value, or one row for a
// value without a list.
func (o *output) writeColumns(to io.Writer, value any) error {
	header, paths, err := columnsOf(o.template)
	if err != nil {
		return err
	}
	items := []any{value}
	for _, list := range []string{"services", "differences", "findings", "events"} {
		if found, ok := value.(map[string]any)[list].([]any); ok {
			items = found
			break
		}
	}
	var rows [][]view.Cell
	for _, item := range items {
		var row []view.Cell
		for _, path := range paths {
			var b strings.Builder
			if err := path.Execute(&b, item); err != nil {
				return err
			}
			row = append(row, view.Cell{Text: cmp.Or(b.String(), "<none>")})
		}
		rows = append(rows, row)
	}
	p := o.printer(to)
	p.Table(header, rows)
	return p.Err()
}

// printer returns a printer with the selected width and colours.
func (o *output) printer(to io.Writer) *view.Printer {
	p := view.NewPrinter(to)
	p.Wide = o.format == formatWide
	p.Color = o.color == "always" || o.color == "auto" && os.Getenv("NO_COLOR") == "" && isTerminal(to)
	return p
}

// isTerminal reports whether the output is a terminal.
func isTerminal(to io.Writer) bool {
	f, ok := to.(*os.File)
	return ok && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(f.Fd()))
}

// oneOf is a flag for one of a few words.
type oneOf struct {
	to    *string
	words []string
}

var _ pflag.Value = &oneOf{}

// String implements pflag.Value.
func (v *oneOf) String() string { return *v.to }

// Type returns the name of the value in --help.
func (v *oneOf) Type() string { return "string" }

// Set implements pflag.Value.
func (v *oneOf) Set(s string) error {
	for _, w := range v.words {
		if s == w {
			*v.to = s
			return nil
		}
	}
	return fmt.Errorf("must be one of %v", v.words)
}

// execute runs a command other than the daemon, and returns its exit code.
func execute(root *cobra.Command) int {
	root.SilenceErrors, root.SilenceUsage = true, true
	understood := false
	root.PersistentPreRun = func(*cobra.Command, []string) { understood = true }
	cmd, err := root.ExecuteC()
	switch {
	case err == nil:
		return exitFine
	case errors.Is(err, errWrong):
		return exitWrong
	}
	fmt.Fprintf(os.Stderr, "Error: %v\n", err)
	if !understood {
		fmt.Fprintf(os.Stderr, "Run %s --help for usage.\n", cmd.CommandPath())
	}
	return exitUnable
}
