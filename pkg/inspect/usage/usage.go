// Package usage suggests known words for a mistyped word or flag of a command line, and makes help fit into the
// terminal.
//
// In: a word, the known words; the error of a command line and its command; or a command with help.
// Out: the end of an error message; or the same help in shorter lines.
// Never: exits.
package usage

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// DidYouMean returns the end of an error message, which lists the known words that are similar to word. It returns ""
// if there are none.
func DidYouMean(word string, known []string) string {
	list := &cobra.Command{SuggestionsMinimumDistance: 2}
	for _, k := range known {
		list.AddCommand(&cobra.Command{Use: k, Run: func(*cobra.Command, []string) {}})
	}
	if similar := list.SuggestionsFor(word); len(similar) > 0 {
		return "; did you mean " + strings.Join(similar, " or ") + "?"
	}
	return ""
}

// FlagError adds the names of similar flags of a command to the error for an unknown flag, and returns other errors
// unchanged.
func FlagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) || len(unknown.GetSpecifiedName()) < 2 {
		return err
	}
	var flags []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { flags = append(flags, "--"+f.Name) })
	return fmt.Errorf("%w%s", err, DidYouMean("--"+unknown.GetSpecifiedName(), flags))
}
