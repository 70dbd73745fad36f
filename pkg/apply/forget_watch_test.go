package apply_test

import (
	"context"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/affinity"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

func TestNewClientsFindPlaces(t *testing.T) {
	apply.NewClientsFindPlaces(t, func(t *testing.T, k *apply.Kernel, p *plan.Planner, clients *nft.Set) (report model.Problem) {
		ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
		defer stop()
		conn, err := nft.Open()
		lab.Must(t, err)
		defer conn.Close() //nolint:errcheck // a test
		watcher := affinity.New(affinity.Config{
			Maps:    []affinity.Map{{Set: clients, Reader: conn}},
			Changed: func() map[plan.Number]types.NamespacedName { return p.TakeOwners(plan.Remembering) },
			Forget:  func(_ context.Context, list []nft.Element) (int, error) { return k.Forget(list) },
			Crowd: func(_ context.Context, f inet.Family, ports []plan.Number) error {
				p.SetCrowded(f, ports)
				return nil
			},
			Report: func(p model.Problem) { report = p; stop() },
		})
		watcher.Synced(&beside.Sync{})
		watcher.Run(ctx)
		return report
	})
}
