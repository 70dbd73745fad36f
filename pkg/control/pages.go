package control

// The pages of the socket.
const (
	PageStatus   = "status"
	PageServices = "services"
	PageNames    = "names"
	PageVerify   = "verify"
	PageWatch    = "watch"
	PageBundle   = "bundle"
)
