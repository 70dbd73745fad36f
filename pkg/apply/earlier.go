package apply

import (
	"cmp"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// Earlier reports whether an earlier process of an instance has left rules, in the network namespace of the calling
// thread.
func Earlier(families []inet.Family, serviceProxyName string) (found bool, err error) {
	conn, err := nft.Open()
	if err != nil {
		return false, err
	}
	defer func() { err = cmp.Or(err, conn.Close()) }()
	for _, f := range families {
		sets, err := conn.Sets(f, plan.Table(serviceProxyName))
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return false, err
		}
		found = found || len(sets) > 0
	}
	return found, nil
}

// EarlierUDP returns the UDP frontends in the tables that an earlier process of an instance left, in the network
// namespace of the calling thread. A missing table is not an error. Frontends that change meanwhile may be missing. The
// kernel's work grows with the square of the number of frontends.
func EarlierUDP(families []inet.Family, serviceProxyName string) (keys []model.Key, err error) {
	conn, err := nft.Open()
	if err != nil {
		return nil, err
	}
	defer func() { err = cmp.Or(err, conn.Close()) }()
	for _, f := range families {
		for _, s := range plan.FrontendSets(f, serviceProxyName) {
			_, err := conn.Each(s, func(e *nft.Found) bool {
				if k, ok := plan.FrontendOf(f, &e.Element); ok && k.Protocol == inet.UDP {
					keys = append(keys, k)
				}
				return true
			})
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return keys, err
			}
		}
	}
	return keys, nil
}
