package usage

import (
	"errors"
	"testing"

	"github.com/spf13/cobra"
)

func TestDidYouMean(t *testing.T) {
	known := []string{"status", "services", "sources"}
	for word, want := range map[string]string{
		"stauts": "; did you mean status?", "s": "; did you mean status or services or sources?", "stat": "; did you mean status?", "node-1": "", "watch": "",
	} {
		if got := DidYouMean(word, known); got != want {
			t.Errorf("%s: %q, want %q", word, got, want)
		}
	}
}

func TestFlagError(t *testing.T) {
	cmd := &cobra.Command{}
	cmd.Flags().BoolP("namespace", "n", false, "")
	for flag, want := range map[string]string{
		"--namspace": "unknown flag: --namspace; did you mean --namespace?", "--other": "unknown flag: --other", "-x": "unknown shorthand flag: 'x' in -x",
	} {
		if err := FlagError(cmd, cmd.ParseFlags([]string{flag})); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %q", flag, err, want)
		}
	}
	if err := errors.New("another"); FlagError(cmd, err) != err {
		t.Error("another error is changed")
	}
}
