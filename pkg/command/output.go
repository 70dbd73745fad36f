package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// Exit codes of the commands. The daemon exits as kube-proxy does: with 0 or 1.
const (
	exitFine = 0
	// exitWrong means that the command has found a problem.
	exitWrong = 1
	// exitUnable means that the command failed: invalid usage, or no answer from the running program.
	exitUnable = 2
)

// errWrong is the error of a command that has printed the problems it found: exit code 1, without another message.
var errWrong = errors.New("something is wrong")

// output prints the result of a command. A command makes one, calls flags, and passes its result to print.
type output struct {
	format string
	color  string
}

// The formats of -o.
const (
	formatTable = "table"
	formatWide  = "wide"
	formatJSON  = "json"
	formatYAML  = "yaml"
)

var formats = []string{formatTable, formatWide, formatJSON, formatYAML}

var whenToColor = []string{"auto", "always", "never"}

// flags adds -o and --color.
func (o *output) flags(cmd *cobra.Command) {
	o.format, o.color = formatTable, "auto"
	cmd.Flags().VarP(&oneOf{&o.format, formats}, "output", "o", "Format: table, wide, json or yaml.")
	cmd.Flags().Var(&oneOf{&o.color, whenToColor}, "color", "Use of colours: always, never, or auto (on a terminal, unless NO_COLOR is set).")
	complete(cmd, "output", formats)
	complete(cmd, "color", whenToColor)
}

// complete adds shell completion of a flag with a list of words.
func complete(cmd *cobra.Command, flag string, words []string) {
	if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // there is no such flag
	}
}

// print writes a value in the selected format; text writes it as text, for table and wide.
func (o *output) print(to io.Writer, value any, text func(*view.Printer)) error {
	switch o.format {
	case formatJSON:
		e := json.NewEncoder(to)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		return e.Encode(value)
	case formatYAML:
		b, err := yaml.Marshal(value)
		if err != nil {
			return err
		}
		_, err = to.Write(b)
		return err
	}
	p := o.printer(to)
	text(p)
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
	if !ok || os.Getenv("TERM") == "dumb" {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
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
