package console

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/config"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/control"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// settings returns the configuration in effect, without secrets.
func (c *Console) settings(context.Context, url.Values) (*config.Running, error) {
	text, err := c.ConfigText()
	return &config.Running{
		Version: c.Version, Started: c.Started, Node: c.NodeName, Config: string(text), TableFlags: c.TableFlags,
	}, err
}

// objects sends the stored objects of the requested kinds as JSON, one on each line. They have only the fields that the
// program stores.
func (c *Console) objects(w http.ResponseWriter, r *http.Request) {
	if unread := c.unreadKinds(); len(unread) > 0 {
		http.Error(w, fmt.Sprintf("the program has not read %s yet: set -f with all objects, or ask again "+
			"later", strings.Join(unread, ", ")), http.StatusServiceUnavailable)
		return
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(control.AnswerTime))
	w.Header().Set("Content-Type", "application/x-ndjson")
	kinds := r.URL.Query()["kind"]
	e := json.NewEncoder(w) // an error means that the client has closed the connection
	if node := c.Source.Node().DeepCopy(); node != nil && slices.Contains(kinds, control.KindNode) {
		node.APIVersion, node.Kind = "v1", control.KindNode
		_ = e.Encode(node)
	}
	if slices.Contains(kinds, control.KindServiceCIDR) {
		for _, cidr := range c.Source.ServiceCIDRs() {
			cidr = cidr.DeepCopy()
			cidr.APIVersion, cidr.Kind = "networking.k8s.io/v1", control.KindServiceCIDR
			_ = e.Encode(cidr)
		}
	}
	if !slices.Contains(kinds, control.KindService) {
		return
	}
	for _, name := range c.Source.Services() {
		of := c.Source.Get(name)
		if pod := of.Pod.DeepCopy(); pod != nil {
			pod.APIVersion, pod.Kind = "v1", "Pod"
			_ = e.Encode(pod)
			continue
		}
		if svc := of.Service.DeepCopy(); svc != nil {
			svc.APIVersion, svc.Kind = "v1", control.KindService
			_ = e.Encode(svc)
		}
		for _, stored := range of.Slices {
			slice := stored.Object(name.Name)
			slice.APIVersion, slice.Kind = "discovery.k8s.io/v1", "EndpointSlice"
			if e.Encode(slice) != nil {
				return
			}
		}
	}
}

// starts returns the starting endpoints of all Services.
func (c *Console) starts(ctx context.Context, _ url.Values) (map[string][]model.Share, error) {
	all, err := c.Loop.Starts(ctx)
	v := map[string][]model.Share{}
	for name, starts := range all {
		v[name.String()] = starts.Shares()
	}
	return v, err
}

// pod returns the addresses of a pod. Only pods that are endpoints of a Service are known.
func (c *Console) pod(ctx context.Context, namespace, name string) ([]string, error) {
	var list []string
	known := c.pods(ctx, namespace, "", func(_, address, pod string) {
		if pod == name && !slices.Contains(list, address) {
			list = append(list, address)
		}
	})
	switch {
	case !known:
		return nil, fmt.Errorf("the API server does not answer: use the address of pod %s/%s", namespace, name)
	case len(list) == 0:
		return nil, control.NotFound(fmt.Sprintf("pod %[1]s/%[2]s is not an endpoint of a Service, so its address is unknown here: use the address "+
			"(kubectl -n %[1]s get pod %[2]s -o wide), or kubectl nftproxy trace pod/%[1]s/%[2]s", namespace, name))
	}
	return list, nil
}
