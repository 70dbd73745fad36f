package house

import (
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/neighbours"
	"github.com/kube-nftproxy/kube-nftproxy/test/page"
)

// TestCompatibilityPageHasTheResults compares the tables of docs/compatibility.md with docs/compatibility.json.
func TestCompatibilityPageHasTheResults(t *testing.T) {
	rows, err := neighbours.Read(root)
	lab.Must(t, err)
	if len(rows) < 10 {
		t.Errorf("only %d neighbours", len(rows))
	}
	part, err := page.Part(mustRead(t, neighbours.Page), neighbours.PagePart)
	lab.Must(t, err)
	lab.Same(t, neighbours.Table(rows), part, "%s", neighbours.Page)
}
