package main

import (
	"encoding/binary"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestBystanderWaits commits a large batch beside a bystander: the bystander has to wait, and leaves no trace.
func TestBystanderWaits(t *testing.T) {
	l := lab.ForTest(t, lab.Config{})
	var conn *nft.Conn
	lab.Must(t, l.Node.Do(func() (err error) { conn, err = nft.Open(); return err }))
	defer conn.Close()
	b, err := newBystander(l.Node)
	lab.Must(t, err)
	awaitBatches(t, b, 1) // the first one makes the table
	before := generation(t, conn)
	if alone := awaitBatches(t, b, 20).percentile99(); alone == 0 || alone > time.Second {
		t.Errorf("99 of 100 batches of a bystander by itself took less than %v, want a moment", alone)
	}
	if after := generation(t, conn); after != before {
		t.Errorf("the generation changed from %d to %d, want no change of the ruleset", before, after)
	}
	batch := manyElements(200_000)
	start := time.Now()
	lab.Must(t, conn.Commit(batch))
	took := time.Since(start)
	// The kernel copies the batch before it takes the lock. The bystander may also have to wait for a processor, even to record
	// its waiting time.
	var waited time.Duration
	for deadline := time.Now().Add(10 * time.Second); waited < took/4 && time.Now().Before(deadline); {
		waited = max(waited, awaitBatches(t, b, 1).longest())
	}
	if waited < took/4 || waited > took+time.Second {
		t.Errorf("beside a batch of %v the bystander waited for %v at most", took, waited)
	}
	lab.Check(t, b.close(), "close")
	if found, err := conn.HasTable(bystanderTable.Family, bystanderTable.Name); err != nil || found {
		t.Errorf("afterwards its table is there: %v, %v", found, err)
	}
}

// awaitBatches collects the bystander's times until there are n.
func awaitBatches(t *testing.T, b *bystander, n int) (all waits) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); len(all) < n; {
		if time.Now().After(deadline) {
			t.Fatalf("%d batches in a minute, want %d", len(all), n)
		}
		all = append(all, b.take()...)
		runtime.Gosched()
	}
	return all
}

func generation(t *testing.T, conn *nft.Conn) uint32 {
	t.Helper()
	g, err := conn.Generation()
	lab.Must(t, err)
	return g
}

// manyElements returns a batch with a table and a set with n addresses.
func manyElements(n int) *nft.Batch {
	table := &nft.Table{Family: inet.IPv4, Name: "large"}
	set := &nft.Set{Family: inet.IPv4, Table: table.Name, Name: "s", Key: []nft.Field{nft.DstAddr(inet.IPv4)}, Size: uint32(2 * n)}
	batch := nft.NewBatch(72 * n)
	batch.AddTable(table)
	batch.AddSet(set)
	for i := range n {
		addr := netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(10<<24+i))))
		batch.AddElement(&nft.Element{Set: set, Key: nft.Value{}.Addr(addr)})
	}
	return batch
}

// TestWaits includes batches that would have been sent during a wait.
func TestWaits(t *testing.T) {
	ms := time.Millisecond
	quick := make(waits, 0, 1000)
	for range 989 {
		quick = append(quick, ms/10)
	}
	for _, tc := range []struct {
		name         string
		waits        waits
		longest, p99 time.Duration
	}{
		{"none", nil, 0, 0},
		{"one", waits{ms / 10}, ms / 10, ms / 10},
		// 989 + 11 waits of 11, 10 ... 1 ms: the ten longest are a hundredth.
		{"one long one", append(quick[:989:989], 11*ms), 11 * ms, 2 * ms},
		{"one that is short enough to be the hundredth part", append(quick[:989:989], 9*ms), 9 * ms, ms / 10},
	} {
		t.Run(tc.name, func(t *testing.T) {
			lab.Same(t, tc.longest, tc.waits.longest(), "longest()")
			lab.Same(t, tc.p99, tc.waits.percentile99(), "percentile99()")
		})
	}
}
