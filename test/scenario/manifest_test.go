package scenario

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

const documentSeparator = "---\n"

// endpointSlices returns the manifest of a file with endpoints: each line is an EndpointSlice, or one for each family (README.md).
func endpointSlices(text []byte) ([]byte, error) {
	var out []string
	for _, line := range strings.Split(string(text), "\n") {
		if line, _, _ = strings.Cut(line, "#"); strings.TrimSpace(line) == "" {
			continue
		}
		head, list, found := strings.Cut(line+" ", ": ")
		words := strings.Fields(head)
		if !found || len(words) < 2 {
			return nil, fmt.Errorf("%q: want NAMESPACE/NAME PORT...: ENDPOINT...", line)
		}
		base, families := words[0], inet.Families[:]
		for _, f := range inet.Families {
			if name, found := strings.CutSuffix(words[0], suffixes[f]); found {
				base, families = name, []inet.Family{f}
			}
		}
		for _, f := range families {
			slice, err := endpointSlice(base, f, words[1:], strings.Fields(list))
			if err != nil {
				return nil, fmt.Errorf("%q: %w", line, err)
			}
			data, err := yaml.Marshal(slice)
			if err != nil {
				return nil, err
			}
			out = append(out, string(data))
		}
	}
	return []byte(strings.Join(out, documentSeparator)), nil
}

// mustSlices returns endpointSlices of the same text.
func mustSlices(t *testing.T, lines string) string {
	t.Helper()
	text, err := endpointSlices([]byte(lines))
	lab.Must(t, err)
	return string(text)
}

var (
	suffixes     = [...]string{inet.IPv4: "-4", inet.IPv6: "-6"}
	addressTypes = [...]discoveryv1.AddressType{inet.IPv4: discoveryv1.AddressTypeIPv4, inet.IPv6: discoveryv1.AddressTypeIPv6}
)

func endpointSlice(base string, f inet.Family, ports, endpoints []string) (*discoveryv1.EndpointSlice, error) {
	namespace, name, _ := strings.Cut(base, "/")
	service := name
	if ports[0] == "of" && len(ports) > 1 {
		service, ports = ports[1], ports[2:]
	}
	s := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: discoveryv1.SchemeGroupVersion.String(), Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name + suffixes[f], Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: addressTypes[f],
		Endpoints:   []discoveryv1.Endpoint{},
	}
	for _, text := range ports {
		port, err := endpointPort(text)
		if err != nil {
			return nil, err
		}
		s.Ports = append(s.Ports, port)
	}
	var weights []string
	for _, text := range endpoints {
		endpoint, weight, err := endpoint(text, f)
		if err != nil {
			return nil, err
		}
		s.Endpoints = append(s.Endpoints, endpoint)
		if weight != "" {
			weights = append(weights, endpoint.Addresses[0]+"="+weight)
		}
	}
	if weights != nil {
		s.Annotations = map[string]string{"kube-nftproxy.io/weights": strings.Join(weights, ",")}
	}
	return s, nil
}

// endpointPort parses [NAME=]PORT[/PROTOCOL].
func endpointPort(text string) (p discoveryv1.EndpointPort, err error) {
	if name, rest, found := strings.Cut(text, "="); found {
		p.Name, text = &name, rest
	}
	number, protocol, found := strings.Cut(text, "/")
	if found {
		p.Protocol = new(corev1.Protocol(strings.ToUpper(protocol)))
	}
	port, err := strconv.ParseInt(number, 10, 32)
	p.Port = new(int32(port))
	return p, err
}

var (
	endpointPattern  = regexp.MustCompile(`^([^@*!+]+)(?:@([a-z0-9-]*))?(?:\*([0-9]+))?((?:[!+][a-z0-9=-]+)*)$`)
	attributePattern = regexp.MustCompile(`[!+][^!+]+`)
)

// endpoint parses HOST or ADDRESS, with a node, a weight and attributes.
func endpoint(text string, f inet.Family) (e discoveryv1.Endpoint, weight string, err error) {
	match := endpointPattern.FindStringSubmatch(text)
	if match == nil {
		return e, "", fmt.Errorf("%q is not an endpoint", text)
	}
	address, node := match[1], match[2]
	if host := lab.AddressOf(address, f); host.IsValid() {
		if !strings.Contains(text, "@") {
			node = map[bool]string{false: nodeName, true: "node-2"}[strings.HasPrefix(address, "remote-")]
		}
		address = host.String()
	}
	e.Addresses = []string{address}
	if node != "" {
		e.NodeName = &node
	}
	for _, attribute := range attributePattern.FindAllString(match[4], -1) {
		if err := setAttribute(&e, attribute[1:], attribute[0] == '+'); err != nil {
			return e, "", err
		}
	}
	return e, match[3], nil
}

func setAttribute(e *discoveryv1.Endpoint, name string, value bool) error {
	key, hint, _ := strings.Cut(name, "=")
	switch key {
	case "ready":
		e.Conditions.Ready = &value
		return nil
	case "serving":
		e.Conditions.Serving = &value
		return nil
	case "terminating":
		e.Conditions.Terminating = &value
		return nil
	}
	if e.Hints == nil {
		e.Hints = &discoveryv1.EndpointHints{}
	}
	switch {
	case key == "zone" && value:
		e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: hint})
	case key == "node" && value:
		e.Hints.ForNodes = append(e.Hints.ForNodes, discoveryv1.ForNode{Name: hint})
	default:
		return fmt.Errorf("%q is not an attribute of an endpoint", name)
	}
	return nil
}

// completed makes a Service of each document that has no kind. It has the name of the file and the namespace "shop",
// unless the document has others.
func completed(manifest []byte, name string) ([]byte, error) {
	documents := bytes.Split(manifest, []byte("\n"+documentSeparator))
	for i, document := range documents {
		object, named, err := identified(document)
		if err != nil || named.Kind != "" || string(object) == "null" {
			continue // a scenario may have objects that cannot be read
		}
		defaults := fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Service", "metadata": {"name": %q, "namespace": "shop"}}`, name)
		if object, err = jsonpatch.MergePatch(defaults, object); err != nil {
			return nil, err
		}
		if documents[i], err = yaml.JSONToYAML(object); err != nil {
			return nil, err
		}
	}
	return bytes.Join(documents, []byte("\n"+documentSeparator)), nil
}

// patched applies JSON merge patches (RFC 7386) to the objects of a manifest. A patch with a kind or name changes the objects with
// this kind and name.
func patched(manifest, patches []byte) ([]byte, error) {
	if manifest == nil {
		return nil, errors.New("no earlier step has the manifest")
	}
	documents := bytes.Split(manifest, []byte("\n"+documentSeparator))
	for _, text := range bytes.Split(patches, []byte("\n"+documentSeparator)) {
		patch, wanted, err := identified(text)
		if err != nil {
			return nil, err
		}
		changed := 0
		for i, document := range documents {
			object, named, err := identified(document)
			if err != nil {
				return nil, err
			}
			if wanted.Kind != "" && wanted.Kind != named.Kind || wanted.Metadata.Name != "" && wanted.Metadata.Name != named.Metadata.Name {
				continue
			}
			changed++
			if object, err = jsonpatch.MergePatch(object, patch); err != nil {
				return nil, err
			}
			if documents[i], err = yaml.JSONToYAML(object); err != nil {
				return nil, err
			}
		}
		if changed != 1 {
			return nil, fmt.Errorf("the patch changes %d objects, want 1:\n%s", changed, text)
		}
	}
	return bytes.Join(documents, []byte("\n"+documentSeparator)), nil
}

// identity is the part of an object that selects it.
type identity struct {
	Kind     string
	Metadata struct{ Name string }
}

// identified returns a YAML document as JSON, with its identity.
func identified(document []byte) (object []byte, of identity, err error) {
	if object, err = yaml.YAMLToJSON(document); err == nil {
		err = json.Unmarshal(object, &of)
	}
	return object, of, err
}

func TestEndpointNotation(t *testing.T) {
	for _, tc := range []struct {
		line string
		want []string
	}{
		{"shop/web http=8080 53/udp: pod-1 remote-0*0!ready+serving # both families", []string{
			`{metadata: {namespace: shop, name: web-4, labels: {kubernetes.io/service-name: web}, annotations: {kube-nftproxy.io/weights: 10.244.1.10=0}},
			addressType: IPv4, ports: [{name: http, port: 8080}, {port: 53, protocol: UDP}], endpoints: [{addresses: [10.244.0.11], nodeName: node-1},
			{addresses: [10.244.1.10], nodeName: node-2, conditions: {ready: false, serving: true}}]}`,
			`{metadata: {namespace: shop, name: web-6, labels: {kubernetes.io/service-name: web}, annotations: {kube-nftproxy.io/weights: "fd00:10:244:1::10=0"}},
			addressType: IPv6, ports: [{name: http, port: 8080}, {port: 53, protocol: UDP}], endpoints: [{addresses: ["fd00:10:244::11"], nodeName: node-1},
			{addresses: ["fd00:10:244:1::10"], nodeName: node-2, conditions: {ready: false, serving: true}}]}`,
		}},
		{"shop/b-6 of web 80: 2001:db8::9@node-9+zone=a+zone=b+node=c node@ node@node-9", []string{
			`{metadata: {namespace: shop, name: b-6, labels: {kubernetes.io/service-name: web}}, addressType: IPv6, ports: [{port: 80}], endpoints: [
			{addresses: ["2001:db8::9"], nodeName: node-9, hints: {forZones: [{name: a}, {name: b}], forNodes: [{name: c}]}},
			{addresses: ["2001:db8::1"]}, {addresses: ["2001:db8::1"], nodeName: node-9}]}`,
		}},
		{"shop/web-4 80:", []string{
			`{metadata: {namespace: shop, name: web-4, labels: {kubernetes.io/service-name: web}}, addressType: IPv4, ports: [{port: 80}], endpoints: []}`,
		}},
	} {
		text, err := endpointSlices([]byte(tc.line))
		lab.Must(t, err)
		var want, got []discoveryv1.EndpointSlice
		for _, text := range tc.want {
			var s discoveryv1.EndpointSlice
			lab.Must(t, yaml.Unmarshal([]byte(strings.ReplaceAll(text, "\t", "")), &s))
			s.TypeMeta = metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}
			want = append(want, s)
		}
		for _, document := range strings.Split(string(text), documentSeparator) {
			var s discoveryv1.EndpointSlice
			lab.Must(t, yaml.UnmarshalStrict([]byte(document), &s))
			got = append(got, s)
		}
		lab.Same(t, want, got, "%s", tc.line)
	}
}
