package house

import (
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/test/page"
)

// TestPictureShowsTheCommands draws the terminal picture of the README from the output that TestDebugging compares with
// the program.
func TestPictureShowsTheCommands(t *testing.T) {
	checkFile(t, "docs/plots/terminal.svg", page.Terminal(mustRead(t, "docs/plots/terminal.ansi")))
}
