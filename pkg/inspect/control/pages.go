package control

// The pages of the socket.
const (
	PageStatus   = "status"
	PageServices = "services"
	PageNames    = "names"
	PageVerify   = "verify"
	PageWatch    = "watch"
	PageBundle   = "bundle"
	PagePod      = "pod"
	PageSettings = "settings"
	PageObjects  = "objects"
	PageStarts   = "starts"
)

// The values of the parameter kind of PageObjects. Services come with their EndpointSlices.
const (
	KindNode        = "Node"
	KindServiceCIDR = "ServiceCIDR"
	KindService     = "Service"
)
