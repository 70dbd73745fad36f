package house

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/page"
)

// TestPictureShowsTheCommands compares the terminal picture of the README with the output in docs/debugging.md, which TestDebugging
// compares with the program.
func TestPictureShowsTheCommands(t *testing.T) {
	const picture = "docs/plots/terminal.svg"
	debugging := mustRead(t, "docs/debugging.md")
	var text strings.Builder
	for _, name := range []string{"status", "services", "trace"} {
		part, err := page.Part(debugging, name)
		lab.Must(t, err)
		text.WriteString(strings.TrimSuffix(strings.TrimPrefix(part, "```console\n"), "```\n") + "\n")
	}
	want := page.Terminal(text.String())
	if *update {
		lab.Must(t, os.WriteFile(filepath.Join(root, picture), []byte(want), 0o600))
	}
	lab.Same(t, want, mustRead(t, picture), "%s is not the output in docs/debugging.md; run make update", picture)
}
