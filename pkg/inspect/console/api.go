package console

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

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
	server func() string
	client *kubeapi.Client
	// user returns the name by which the API server knows this program.
	user     func(context.Context) (string, error)
	mu       sync.Mutex
	failures map[string]view.WatchFailure
}

// NewAPI returns an API for a client of the API server. server returns the address in use, which may contain secrets. user returns the name by which
// the API server knows this program.
func NewAPI(server func() string, client *kubeapi.Client, user func(context.Context) (string, error)) *API {
	return &API{server: server, client: client, user: user, failures: map[string]view.WatchFailure{}}
}

// Failed records a failure to list or watch a resource.
func (a *API) Failed(resource string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f := view.WatchFailure{Resource: resource, Times: a.failures[resource].Times + 1, Last: time.Now()}
	whyFailed(&f, err)
	a.failures[resource] = f
}

// State queries the API server's health, for two seconds at most.
func (a *API) State(ctx context.Context) view.API {
	s := a.recorded()
	const patience = 2 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	start := time.Now()
	err := a.client.REST.Get().AbsPath("/readyz").Do(ctx).Error()
	// An API server that rejects the query is reachable.
	if s.Answers = err == nil || answered(err); s.Answers {
		s.AnswerMicros = max(1, time.Since(start).Microseconds())
	} else {
		s.Error = config.Redact(err.Error())
	}
	return s
}

// recorded returns the address in use and the recorded failures, without a query.
func (a *API) recorded() view.API {
	s := view.API{Source: config.WithoutSecrets(a.server())}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, f := range a.failures {
		s.Failures = append(s.Failures, f)
	}
	slices.SortFunc(s.Failures, func(a, b view.WatchFailure) int { return strings.Compare(a.Resource, b.Resource) })
	return s
}

// permit returns the fix for missing permissions: the command that binds the smallest sufficient role to the user of this program. It queries the API
// server for the user. Without an answer, the fix names no user.
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
		return "the API server does not know this program: put a token or a client certificate into the kubeconfig", "only the programs that use the same kubeconfig"
	}
	if !plainUser.MatchString(user) {
		return fmt.Sprintf("bind the ClusterRole system:node-proxier to the user %q", user), permitted
	}
	subject := "--user=" + user
	if account, is := strings.CutPrefix(user, "system:serviceaccount:"); is {
		subject = "--serviceaccount=" + account
	}
	name := strings.NewReplacer(":", "-", "/", "-").Replace(strings.TrimPrefix(user, "system:"))
	return fmt.Sprintf("kubectl create clusterrolebinding kube-nftproxy-%s --clusterrole=system:node-proxier %s", name, subject), permitted
}

// whyFailed sets a short reason for a failure to list or watch, and its kind: forbidden, unauthorized, or no answer.
func whyFailed(f *view.WatchFailure, err error) {
	f.Forbidden, f.Unauthorized = apierrors.IsForbidden(err), apierrors.IsUnauthorized(err)
	text := err.Error()
	var failed *url.Error
	var said apierrors.APIStatus
	switch {
	case errors.As(err, &failed):
		text, f.Unanswered = failed.Err.Error(), true // omits the address, which is long and known
	case errors.As(err, &said) && said.Status().Message != "":
		text = said.Status().Message
	}
	f.Error = config.Redact(text)
}

// answered reports whether an error is an answer of an API server that rejects the query.
func answered(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsNotFound(err)
}

// failing returns the resources that could not be listed or watched, sorted.
func (a *API) failing() (resources []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, f := range a.failures {
		resources = append(resources, f.Resource)
	}
	slices.Sort(resources)
	return resources
}

// askAPI is the timeout of a query about a Service.
const askAPI = 2 * time.Second

// live queries the API server for the Services with a name. serviceProxyName decides whether the program serves them. known is false without an API
// server, or without an answer.
func (a *API) live(ctx context.Context, namespace, name, serviceProxyName string) (list []declared, known bool) {
	if a == nil {
		return nil, false
	}
	ctx, cancel := context.WithTimeout(ctx, askAPI)
	defer cancel()
	found, err := a.client.Services(namespace).List(ctx, metav1.ListOptions{
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

// labelled queries the API server for the names of the Services that match a label selector. The program does not store labels.
func (a *API) labelled(ctx context.Context, namespace, selector string) (map[types.NamespacedName]bool, error) {
	if a == nil {
		return nil, errors.New("a label selector requires an API server")
	}
	ctx, cancel := context.WithTimeout(ctx, askAPI)
	defer cancel()
	list, err := a.client.Services(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector, ResourceVersion: "0"})
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

// pods queries the API server for the names of the pods of a Service's endpoints, which the program does not store. Without an answer, it returns
// none.
func (a *API) pods(ctx context.Context, namespace, service string) map[podAt]string {
	names := map[podAt]string{}
	a.targets(ctx, namespace, "kubernetes.io/service-name="+service, func(slice, address, pod string) {
		names[podAt{slice, address}] = pod
	})
	return names
}

// podAddresses returns the addresses of a pod that is an endpoint of any Service in its namespace.
func (a *API) podAddresses(ctx context.Context, namespace, name string) (list []string, known bool) {
	known = a.targets(ctx, namespace, "", func(_, address, pod string) {
		if pod == name && !slices.Contains(list, address) {
			list = append(list, address)
		}
	})
	return list, known
}

// targets calls f with each endpoint that is a pod. It reads at most mostPages pages of EndpointSlices, and reports whether the API
// server answered.
func (a *API) targets(ctx context.Context, namespace, selector string, f func(slice, address, pod string)) bool {
	const page, mostPages = 500, 20
	if a == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, askAPI)
	defer cancel()
	options := metav1.ListOptions{LabelSelector: selector, Limit: page}
	for range mostPages {
		list, err := a.client.EndpointSlices(namespace).List(ctx, options)
		if err != nil {
			return false
		}
		for i := range list.Items {
			for j := range list.Items[i].Endpoints {
				e := &list.Items[i].Endpoints[j]
				if len(e.Addresses) > 0 && e.TargetRef != nil && e.TargetRef.Kind == "Pod" {
					f(list.Items[i].Name, e.Addresses[0], e.TargetRef.Name)
				}
			}
		}
		if options.Continue = list.Continue; options.Continue == "" {
			break
		}
	}
	return true
}
