package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"slices"
	"sync"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// bystander is another program with nftables rules in the proxy's network namespace, such as a firewall. The kernel holds one
// lock from a batch's first message until its commit, and a bystander's batch has to wait for it: so it measures the proxies' use
// of the lock from outside. Its batch adds an existing table. It takes the lock and changes nothing, so it causes no checks by
// programs that watch the ruleset, and no restart of listings.
type bystander struct {
	conn *nft.Conn
	stop chan struct{}
	done chan error

	mu    sync.Mutex
	waits []time.Duration
}

// bystanderPause is the pause between two of its batches.
const bystanderPause = time.Millisecond

var bystanderTable = &nft.Table{Family: inet.IPv4, Name: "bystander"}

// newBystander starts a bystander.
func newBystander(host *lab.Host) (*bystander, error) {
	b := &bystander{stop: make(chan struct{}), done: make(chan error, 1)}
	err := host.Do(func() (err error) {
		b.conn, err = nft.Open()
		return err
	})
	if err != nil {
		return nil, err
	}
	go func() { b.done <- b.work() }()
	return b, nil
}

// work commits until close.
func (b *bystander) work() error {
	for {
		batch := nft.NewBatch(0)
		batch.AddTable(bystanderTable)
		start := time.Now()
		if err := b.conn.Commit(batch); err != nil {
			return fmt.Errorf("commit beside the proxy: %w", err)
		}
		b.note(time.Since(start))
		select {
		case <-b.stop:
			return nil
		case <-time.After(bystanderPause):
		}
	}
}

func (b *bystander) note(wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waits = append(b.waits, wait)
}

// take returns the durations of the batches answered since the last call.
func (b *bystander) take() waits {
	b.mu.Lock()
	defer b.mu.Unlock()
	taken := b.waits
	b.waits = nil
	return taken
}

// close stops it and removes its table.
func (b *bystander) close() error {
	close(b.stop)
	err := <-b.done
	batch := nft.NewBatch(0)
	batch.DeleteTable(bystanderTable.Family, bystanderTable.Name)
	return errors.Join(err, b.conn.Commit(batch), b.conn.Close())
}

// waits are the durations of batches, in order.
type waits []time.Duration

func (w waits) longest() time.Duration {
	if len(w) == 0 {
		return 0
	}
	return slices.Max(w)
}

// percentile99 returns the duration that 99 of 100 batches do not exceed. During a wait no batch is sent. It includes the batches
// that would have been sent in that time, with the rest of that wait.
func (w waits) percentile99() time.Duration {
	var all []time.Duration
	for _, wait := range w {
		all = append(all, wait)
		for rest := wait - bystanderPause; rest > 0; rest -= bystanderPause {
			all = append(all, rest)
		}
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[len(all)*99/100]
}

// measureBeside measures the waits of a bystander while the proxy programs everything, follows single changes, and many at once.
func (p *proxy) measureBeside(ctx context.Context, w *world, e effort, f *Figures) (err error) {
	if e.beside == 0 {
		return nil
	}
	log.Printf("%s, %s: beside another program's batches", w.size, p.name)
	if err := p.cleanUp(ctx); err != nil {
		return err
	}
	b, err := newBystander(p.host)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	if _, err := p.start(ctx); err != nil {
		return err
	}
	first := b.take()
	f.add(waitFirst, first.longest().Seconds())
	f.add(waitFirst99, first.percentile99().Seconds())
	var single waits
	for range e.beside {
		_, _, err := p.sync(ctx, func() error {
			b.take()
			w.store.Put(w.slice(w.spread(w.rounds), w.next(), w.endpoints))
			return w.store.Flush()
		})
		if err != nil {
			return err
		}
		waited := b.take()
		single = append(single, waited...)
		f.add(waitSingle, waited.longest().Seconds())
	}
	f.add(waitSingle99, single.percentile99().Seconds())
	if err := wait(ctx, p.quiet); err != nil {
		return err
	}
	b.take()
	if _, err := p.syncBurst(ctx, w); err != nil {
		return err
	}
	many := b.take()
	f.add(waitBurst, many.longest().Seconds())
	f.add(waitBurst99, many.percentile99().Seconds())
	return nil
}
