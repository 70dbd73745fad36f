package house

import (
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/test/neighbours"
)

// TestCompatibilityPageHasTheResults compares the tables of docs/compatibility.md with docs/compatibility.json.
func TestCompatibilityPageHasTheResults(t *testing.T) { neighbours.Results.Check(t, root) }
