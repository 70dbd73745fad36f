package nft

import (
	"github.com/cespare/xxhash/v2"
)

// Fingerprint returns a hash of a table's constant part: sets without sizes, chains and rules, as encoded for the
// kernel.
func Fingerprint(t *Table) uint64 {
	b := NewBatch(64 << 10)
	b.AddTable(t)
	for _, s := range t.Sets {
		unsized := *s
		unsized.Size = 0
		b.AddSet(&unsized)
	}
	for _, c := range t.Chains {
		b.AddChain(t, c)
		b.AddRules(t, c)
	}
	b.Finish(b.last)
	return xxhash.Sum64(b.Buf)
}
