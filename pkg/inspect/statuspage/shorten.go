package statuspage

import "github.com/kube-nftproxy/kube-nftproxy/pkg/view"

// Limits for one Service on a page, and for a whole page. The API has no limits, or high ones.
const (
	// mostListed is the limit of each list of a Service; for endpoints, of used and of unused ones.
	mostListed = 8
	// mostLines is the limit of addresses and endpoints on a page.
	mostLines = 800
	// longestText is the limit of a text in bytes.
	longestText = 400
)

// services is a page of Services in the answer.
type services struct {
	*Found
	Offset   int       `json:"offset"`
	Services []service `json:"services"`
}

// service is one Service in the answer. Items beyond the limits are only counted.
type service struct {
	view.Service
	Wrong bool `json:"wrong"`
	// Causes replace the problems.
	Causes []view.Cause `json:"causes,omitempty"`
	Ports  []port       `json:"ports"`
	More   int          `json:"morePorts,omitempty"`
}

type port struct {
	view.ServicePort
	Count         int `json:"endpointCount"`
	MoreFrontends int `json:"moreFrontends,omitempty"`
	MoreEndpoints int `json:"moreEndpoints,omitempty"`
}

// shortener counts the remaining lines.
type shortener struct{ lines int }

func shorten(f *Found, offset int) services {
	s := shortener{mostLines}
	f.NodeAddresses = few(&s, f.NodeAddresses)
	out := services{f, offset, make([]service, 0, len(f.Services))}
	for i := range f.Services {
		out.Services = append(out.Services, s.service(&f.Services[i]))
	}
	return out
}

// few returns the beginning of a list.
func few[T any](s *shortener, list []T) []T {
	list = list[:min(len(list), mostListed, s.lines)]
	s.lines -= len(list)
	return list
}

func (s *shortener) service(v *view.Service) service {
	out := service{Service: *v, Wrong: v.Wrong(), Ports: []port{}}
	out.Problems = nil
	out.Causes = few(s, v.Causes())
	for i := range out.Causes {
		out.Causes[i].What = short(out.Causes[i].What)
	}
	out.Notes = s.texts(v.Notes)
	out.Unusable = few(s, v.Unusable)
	for i := range v.Ports {
		if i == mostListed || s.lines == 0 {
			out.More = len(v.Ports) - i
			break
		}
		out.Ports = append(out.Ports, s.port(&v.Ports[i]))
	}
	return out
}

func (s *shortener) port(v *view.ServicePort) port {
	out := port{ServicePort: *v, Count: len(v.Endpoints)}
	out.Why = short(v.Why)
	out.Frontends = append([]view.Frontend{}, few(s, v.Frontends)...)
	for i := range out.Frontends {
		out.Frontends[i].AllowedSources = few(s, out.Frontends[i].AllowedSources)
		out.Frontends[i].DeniedSources = few(s, out.Frontends[i].DeniedSources)
	}
	out.Endpoints = []view.Endpoint{}
	var used, unused int
	for i := range v.Endpoints {
		n := &used
		if !v.Endpoints[i].Chosen() {
			n = &unused
		}
		if *n < mostListed && s.lines > 0 {
			out.Endpoints = append(out.Endpoints, v.Endpoints[i])
			*n++
			s.lines--
		}
	}
	out.MoreFrontends = len(v.Frontends) - len(out.Frontends)
	out.MoreEndpoints = len(v.Endpoints) - len(out.Endpoints)
	return out
}

func (s *shortener) texts(list []string) (out []string) {
	for _, text := range few(s, list) {
		out = append(out, short(text))
	}
	return out
}

// short returns the beginning of a text. The encoder replaces a truncated character.
func short(text string) string {
	if len(text) > longestText {
		return text[:longestText] + "…"
	}
	return text
}
