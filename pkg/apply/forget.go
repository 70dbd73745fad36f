package apply

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// fewForgotten is the largest number of clients that Forget skips together. A batch that fails takes milliseconds on a
// busy node.
const fewForgotten = 100

// Forget deletes remembered clients, and returns the number of deleted ones. It skips those that packets or their
// timeouts have deleted meanwhile: the kernel rejects a batch with a missing element as a whole, so Forget then tries
// the two halves, down to fewForgotten clients. It deletes nothing while the tables are not known to match the plan.
func (k *Kernel) Forget(clients []nft.Element) (int, error) {
	if !k.known || len(clients) == 0 {
		return 0, nil
	}
	b := nft.NewBatch(0)
	for i := range clients {
		b.DeleteElement(&clients[i])
	}
	err := k.commit(b)
	switch {
	case err == nil:
		return len(clients), nil
	case !errors.Is(err, unix.ENOENT) || errors.Is(err, nft.ErrUnknown):
		return 0, fmt.Errorf("forget clients: %w", err)
	case len(clients) <= fewForgotten:
		return 0, nil
	}
	half := len(clients) / 2 //nolint:mnd // a half
	n, err := k.Forget(clients[:half])
	if err != nil {
		return n, err
	}
	m, err := k.Forget(clients[half:])
	return n + m, err
}
