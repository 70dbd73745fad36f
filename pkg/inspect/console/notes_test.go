package console

import (
	"fmt"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestRepeatedNotes: each note is shown once, in the order of the first ones.
func TestRepeatedNotes(t *testing.T) {
	lab.Same(t, []string{"b", "a", "c"}, unique([]string{"b", "a", "b", "c", "a"}), "notes")
}

// BenchmarkNotes shows a Service with a note about each of its endpoints.
func BenchmarkNotes(b *testing.B) {
	for _, n := range []int{1000, 8000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var list []string
			for i := range n {
				list = append(list, fmt.Sprintf("endpoint 10.96.%d.%d is an address of a Service", i/250, i%250))
			}
			b.ReportAllocs()
			for b.Loop() {
				if len(unique(list)) != n {
					b.Fatal("a note is missing")
				}
			}
		})
	}
}
