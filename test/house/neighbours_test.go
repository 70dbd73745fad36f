package house

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nftproxy/kube-nftproxy/test/neighbours"
	"github.com/kube-nftproxy/kube-nftproxy/test/page"
)

// TestCompatibilityPageHasTheResults compares the tables of docs/compatibility.md with docs/compatibility.json.
func TestCompatibilityPageHasTheResults(t *testing.T) {
	rows, err := neighbours.Read(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) < 10 {
		t.Errorf("only %d neighbours", len(rows))
	}
	part, err := page.Part(mustRead(t, neighbours.Page), neighbours.PagePart)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(neighbours.Table(rows), part); diff != "" {
		t.Errorf("%s (-want +got):\n%s", neighbours.Page, diff)
	}
}
