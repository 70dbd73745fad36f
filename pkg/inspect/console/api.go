package console

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/config"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/kubeapi"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// API queries the API server's health, and records failures to list or watch. Its methods are safe for concurrent use.
type API struct {
	server func() (address, proxy string)
	client *kubeapi.Client
	// user returns the name by which the API server knows this program.
	user func(context.Context) (string, error)
	// TokenFile is the file with the token of the requests, or empty.
	TokenFile string

	mu       sync.Mutex
	failures map[string]view.WatchFailure
	// answered is true after the first answer. lost is the time since when there is no answer; zero while the API
	// server answers. failed is the time of the last request without an answer.
	answered     bool
	lost, failed time.Time
}

// NewAPI returns an API for a client of the API server. server returns the address in use, and the HTTP proxy of
// requests to it or ""; both may contain secrets. user returns the name by which the API server knows this program.
func NewAPI(
	server func() (address, proxy string), client *kubeapi.Client, user func(context.Context) (string, error),
) *API {
	return &API{server: server, client: client, user: user, failures: map[string]view.WatchFailure{}}
}

// Failed records a failure to list or watch a resource.
func (a *API) Failed(resource string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f := view.WatchFailure{Resource: resource, Times: a.failures[resource].Times + 1, Last: time.Now()}
	whyFailed(&f, err)
	a.failures[resource] = f
	a.note(err)
}

// Succeeded records that the API server has accepted a watch of a resource. It removes the record of failures, unless
// the API server had answered them: such a failure may occur again at once.
func (a *API) Succeeded(resource string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.note(nil)
	if f := a.failures[resource]; f.Unanswered {
		delete(a.failures, resource)
	} else if f.Times > 0 {
		f.Over = true
		a.failures[resource] = f
	}
}

// note records whether the API server has answered a request, by the error of the request. The caller must hold mu.
func (a *API) note(err error) {
	var answer apierrors.APIStatus
	var unanswered *url.Error
	switch {
	case err == nil, errors.As(err, &answer):
		a.answered, a.lost = true, time.Time{}
	case errors.As(err, &unanswered):
		now := time.Now()
		if a.lost.IsZero() || now.Sub(a.failed) > lately { // in an outage, the program tries again earlier
			a.lost = now
		}
		a.failed = now
	}
}

// State queries the API server's health, for two seconds at most.
func (a *API) State(ctx context.Context) view.API {
	const patience = 2 * time.Second
	query, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	query, step := withSteps(query)
	start := time.Now()
	err := a.client.REST.Get().AbsPath("/readyz").Do(query).Error()
	took := time.Since(start)
	if ctx.Err() == nil {
		a.mu.Lock()
		a.note(err)
		a.mu.Unlock()
	}
	s := a.recorded()
	var said apierrors.APIStatus
	switch {
	case err == nil:
		s.Answers = true
	case errors.As(err, &said):
		s.Answers = true
		if code := said.Status().Code; code >= http.StatusInternalServerError || code == http.StatusTooManyRequests {
			s.Error = config.Redact(err.Error())
		}
	case errors.Is(err, context.DeadlineExceeded):
		s.Error = config.Redact(fmt.Sprintf("no answer within %v, at the step: %s", patience, step()))
	default:
		s.Error, s.Remedy = config.Redact(err.Error()), remedy(err)
	}
	if s.Answers {
		s.AnswerMicros = max(1, took.Microseconds())
	}
	return s
}

// withSteps returns a context for a request, and a function that returns the present step of the request.
func withSteps(ctx context.Context) (request context.Context, step func() string) {
	var now atomic.Value
	at := func(text string) { now.Store(text) }
	at("wait for a connection, or for an earlier request")
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		DNSStart:          func(i httptrace.DNSStartInfo) { at("look up the name " + i.Host) },
		ConnectStart:      func(_, address string) { at("connect to " + address) },
		TLSHandshakeStart: func() { at("TLS handshake") },
		WroteRequest:      func(httptrace.WroteRequestInfo) { at("wait for the answer to the request") },
	}), func() string { return now.Load().(string) }
}

// recorded returns the address in use and the recorded failures, without a query.
func (a *API) recorded() view.API {
	address, proxy := a.server()
	s := view.API{Source: config.WithoutSecrets(address), Proxy: config.WithoutSecrets(proxy), TokenFile: a.TokenFile}
	a.mu.Lock()
	defer a.mu.Unlock()
	if s.Answered = a.answered; !a.lost.IsZero() {
		s.Since = new(a.lost)
	}
	for _, f := range a.failures {
		if !f.Over || time.Since(f.Last) <= lately {
			s.Failures = append(s.Failures, f)
		}
	}
	slices.SortFunc(s.Failures, func(a, b view.WatchFailure) int { return strings.Compare(a.Resource, b.Resource) })
	return s
}

// permit returns the fix for missing permissions: the command that binds the smallest sufficient role to the user of
// this program. It queries the API server for the user. Without an answer, the fix names no user.
func (a *API) permit(ctx context.Context) (fix, affects string) {
	ctx, cancel := context.WithTimeout(ctx, askAPI)
	defer cancel()
	user, err := a.user(ctx)
	if err != nil {
		return "the error names a user: bind the ClusterRole system:node-proxier to this user", permitted
	}
	return permitUser(user)
}

// plainUser matches names that a shell does not interpret.
var plainUser = regexp.MustCompile(`^[A-Za-z0-9:._@/-]+$`)

const permitted = "only this user, who may then read Services, EndpointSlices, ServiceCIDRs and Nodes, and write Events"

// permitUser returns the fix for a user. An anonymous user gets no permission.
func permitUser(user string) (fix, affects string) {
	if user == "" || user == "system:anonymous" {
		return "the API server does not know this program: put a token or a client certificate into the " +
			"kubeconfig", "only the programs that use the same kubeconfig"
	}
	if !plainUser.MatchString(user) {
		return fmt.Sprintf("bind the ClusterRole system:node-proxier to the user %q", user), permitted
	}
	subject := "--user=" + user
	if account, is := strings.CutPrefix(user, "system:serviceaccount:"); is {
		subject = "--serviceaccount=" + account
	}
	name := strings.NewReplacer(":", "-", "/", "-").Replace(strings.TrimPrefix(user, "system:"))
	return fmt.Sprintf("kubectl create clusterrolebinding kube-nftproxy-%s --clusterrole=system:node-proxier "+
		"%s", name, subject), permitted
}

// noSerializer matches client-go's error for an answer with an unknown content type.
var noSerializer = regexp.MustCompile(`serializer for (\S+) doesn't exist`)

// whyFailed sets a short reason for a failure to list or watch, and its kind: forbidden, unauthorized, or no answer.
func whyFailed(f *view.WatchFailure, err error) {
	f.Forbidden, f.Unauthorized = apierrors.IsForbidden(err), apierrors.IsUnauthorized(err)
	text := err.Error()
	var failed *url.Error
	var said apierrors.APIStatus
	switch {
	case errors.As(err, &failed):
		text, f.Unanswered, f.Remedy = failed.Err.Error(), true, remedy(err) // omits the address, which is long and known
	case errors.As(err, &said) && said.Status().Message != "":
		text = said.Status().Message
	}
	if m := noSerializer.FindStringSubmatch(text); m != nil {
		text = fmt.Sprintf("the answer has the content type %q: it is not from an API server, but for example from a "+
			"proxy or a load balancer on the way", m[1])
	}
	f.Error = config.Redact(text)
}

// remedy returns the fix for a request that no API server has received, or "" if the API server is not reachable.
func remedy(err error) string {
	const tlsAlert = "remote error" // the operation of an error that the other side of a TLS connection has sent
	var certificate *tls.CertificateVerificationError
	var dates x509.CertificateInvalidError
	var noTLS tls.RecordHeaderError
	var remote *net.OpError
	switch {
	case errors.As(err, &dates) && dates.Reason == x509.Expired:
		return "if the clock of this node is right, renew the certificate of the API server. Otherwise, correct the clock"
	case errors.As(err, &certificate):
		return "correct the certificate authority or tls-server-name in the kubeconfig, or renew the certificate of " +
			"the API server"
	case strings.Contains(err.Error(), `invalid header field value for "Authorization"`): // of net/http, without a type
		return "correct the token in the kubeconfig, or in its file: it has characters that HTTP does not permit, such as " +
			"the end of a line"
	case errors.As(err, &noTLS), errors.Is(err, http.ErrSchemeMismatch):
		return "correct the address in the kubeconfig: the program at this port does not use TLS"
	case errors.As(err, &remote) && remote.Op == tlsAlert:
		return "correct the client certificate in the kubeconfig: the API server, or a load balancer in front of it, " +
			"rejects the TLS connection"
	}
	return ""
}

// askAPI is the timeout of a query about a Service.
const askAPI = 2 * time.Second

// list queries the API server for Services.
func (a *API) list(ctx context.Context, namespace string, options metav1.ListOptions) (*corev1.ServiceList, error) {
	if a == nil {
		return nil, errors.New("a label selector requires an API server")
	}
	ctx, cancel := context.WithTimeout(ctx, askAPI)
	defer cancel()
	return a.client.Services(namespace).List(ctx, options)
}

// live queries the API server for the Services with a name. serviceProxyName decides whether the program serves them.
// known is false without an API server, or without an answer.
func (a *API) live(ctx context.Context, namespace, name, serviceProxyName string) (list []declared, known bool) {
	found, err := a.list(ctx, namespace, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String(), // a proxy has no permission for get
	})
	if err != nil {
		return nil, false
	}
	for i := range found.Items {
		list = append(list, declaredAs(&found.Items[i], serviceProxyName))
	}
	return list, true
}

// mostOthers is the largest number of Services of other proxies that a query reads.
const mostOthers = 2000

// others queries the API server for the Services of other proxies, by their label. known is false without an answer, or
// if there are too many.
func (a *API) others(ctx context.Context, namespace, serviceProxyName string) (list []corev1.Service, known bool) {
	selector := labelServiceProxyName
	if serviceProxyName != "" {
		selector += "!=" + serviceProxyName
	}
	found, err := a.list(ctx, namespace, metav1.ListOptions{LabelSelector: selector, Limit: mostOthers})
	if err != nil {
		return nil, false
	}
	return found.Items, found.Continue == ""
}

// labelled queries the API server for the names of the Services that match a label selector. The program does not store
// labels.
func (a *API) labelled(ctx context.Context, namespace, selector string) (map[types.NamespacedName]bool, error) {
	list, err := a.list(ctx, namespace, metav1.ListOptions{LabelSelector: selector, ResourceVersion: "0"})
	if err != nil {
		return nil, errors.New(config.Redact(err.Error()))
	}
	names := map[types.NamespacedName]bool{}
	for i := range list.Items {
		names[types.NamespacedName{Namespace: list.Items[i].Namespace, Name: list.Items[i].Name}] = true
	}
	return names, nil
}

// podAt is an endpoint: an address in an EndpointSlice.
type podAt struct{ slice, address string }

// pods calls f with each endpoint that is a pod: of one Service, or of all Services in the namespace if service is
// empty. With an API server, it queries the API server, because the program does not store the names of pods. It
// reports whether all pods are known.
func (c *Console) pods(ctx context.Context, namespace, service string, f func(slice, address, pod string)) bool {
	if c.API != nil {
		selector := ""
		if service != "" {
			selector = discoveryv1.LabelServiceName + "=" + service
		}
		return c.API.targets(ctx, namespace, selector, f)
	}
	for _, n := range c.Source.Services() {
		if n.Namespace != namespace || service != "" && n.Name != service {
			continue
		}
		for _, slice := range c.Source.Get(n).Slices {
			for addr, pod := range slice.Pods {
				f(slice.Name.Name, addr.String(), pod)
			}
		}
	}
	return true
}

// eachTarget calls f with each endpoint of a slice that is a pod.
func eachTarget(slice *discoveryv1.EndpointSlice, f func(slice, address, pod string)) {
	for i := range slice.Endpoints {
		e := &slice.Endpoints[i]
		if len(e.Addresses) > 0 && e.TargetRef != nil && e.TargetRef.Kind == "Pod" {
			f(slice.Name, e.Addresses[0], e.TargetRef.Name)
		}
	}
}

// targets calls f with each endpoint that is a pod. It reads at most mostPages pages of EndpointSlices, and reports
// whether the API server answered.
func (a *API) targets(ctx context.Context, namespace, selector string, f func(slice, address, pod string)) bool {
	const page, mostPages = 500, 20
	ctx, cancel := context.WithTimeout(ctx, askAPI)
	defer cancel()
	options := metav1.ListOptions{LabelSelector: selector, Limit: page}
	for range mostPages {
		list, err := a.client.EndpointSlices(namespace).List(ctx, options)
		if err != nil {
			return false
		}
		for i := range list.Items {
			eachTarget(&list.Items[i], f)
		}
		if options.Continue = list.Continue; options.Continue == "" {
			break
		}
	}
	return true
}
