package statuspage

import "github.com/kube-nftproxy/kube-nftproxy/pkg/view"

// What a Service may show, and what a page of Services: the API sets no bounds, or high ones.
const (
	// mostListed is how long each list of a Service may be; of endpoints it is as many that are used, and as many that aren't.
	mostListed = 8
	// mostLines is how many addresses and endpoints a page may have in all.
	mostLines = 800
	// longestText is in bytes.
	longestText = 400
)

// services is a page of Services as it is sent.
type services struct {
	Total         int       `json:"total"`
	Matching      int       `json:"matching"`
	Offset        int       `json:"offset"`
	NodeAddresses []string  `json:"nodePortAddresses"`
	Services      []service `json:"services"`
}

// service is one of them; what is more than its lists hold is only counted.
type service struct {
	view.Service
	Wrong bool   `json:"wrong"`
	Ports []port `json:"ports"`
	More  int    `json:"morePorts,omitempty"`
}

type port struct {
	view.ServicePort
	Count         int `json:"endpointCount"`
	MoreFrontends int `json:"moreFrontends,omitempty"`
	MoreEndpoints int `json:"moreEndpoints,omitempty"`
}

// shortener counts the lines that are left.
type shortener struct{ lines int }

func shorten(f *Found, offset int) services {
	s := shortener{mostLines}
	out := services{f.Total, f.Matching, offset, few(&s, f.NodeAddresses), make([]service, 0, len(f.Services))}
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
	out.Problems = s.texts(v.Problems)
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

// short returns the beginning of a text. A letter that is cut in the middle is made valid by whoever encodes it.
func short(text string) string {
	if len(text) > longestText {
		return text[:longestText] + "…"
	}
	return text
}
