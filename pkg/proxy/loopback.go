package proxy

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// Loopback serves TCP node ports on loopback, beside the loop. Its methods do not wait. It may keep parts of a Service, which is
// immutable.
type Loopback interface {
	// Service sets a Service. s is nil if the Service was deleted.
	Service(name types.NamespacedName, s *model.Service)
	// Serve starts or stops listening: another instance of the program may serve instead.
	Serve(bool)
}

// onLoopback passes Services to Loopback.
type onLoopback struct {
	quiet
	to Loopback
}

func (l onLoopback) Service(name types.NamespacedName, s *model.Service) { l.to.Service(name, s) }
