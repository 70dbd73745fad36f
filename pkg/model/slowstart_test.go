package model

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/balance"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// began is a time at which all Services of a test are old.
var began = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// rebuilder builds one Service again and again, as the loop does.
type rebuilder struct {
	starts *Starts
	opts   Options
}

// buildAt builds a Service from one slice at a time. Its starting endpoints are those that follow the given ones.
func buildAt(svc *corev1.Service, s *discoveryv1.EndpointSlice, opts Options, before *Starts, now time.Time) *Service {
	opts.Starts, opts.Now = before, &now
	return buildFrom(svc, []*discoveryv1.EndpointSlice{s}, here, opts)
}

// build returns the Service with slow start of 90 seconds at some seconds after began, or before the first sync if seconds is below 0. Its endpoints are in the
// notation of eps.
func (r *rebuilder) build(seconds int, endpoints, algorithmName string) *Service {
	now := time.Time{}
	if seconds >= 0 {
		now = began.Add(time.Duration(seconds) * time.Second)
	}
	svc := service()
	svc.Annotations = map[string]string{prefix + "slow-start": "90", annotationAlgorithm: algorithmName}
	built := buildAt(svc, slice("a", eps(endpoints)...), r.opts, r.starts, now)
	r.starts = built.Starts
	return built
}

// Each row has observations of a Service: the time in seconds, the endpoints in the notation of eps, the weights, and the time of the next step, -1 for none.
// Slow start takes 90 seconds, 9 steps of 10 seconds.
func TestSlowStart(t *testing.T) {
	type at struct {
		seconds   int
		endpoints string
		weights   []uint16
		next      int
	}
	for _, tc := range []struct {
		name string
		list []at
	}{
		{"known at the start", []at{{-1, "1rs 2rs", []uint16{10, 10}, -1}, {0, "1rs 2rs", []uint16{10, 10}, -1}}},
		{"a new endpoint", []at{
			{-1, "1rs 2rs", []uint16{10, 10}, -1}, {0, "1rs 2rs 3rs", []uint16{10, 10, 1}, 10}, {9, "1rs 2rs 3rs", []uint16{10, 10, 1}, 10},
			{10, "1rs 2rs 3rs", []uint16{10, 10, 2}, 20}, {11, "1rs 2rs 3rs", []uint16{10, 10, 2}, 20}, {79, "1rs 2rs 3rs", []uint16{10, 10, 8}, 80},
			{80, "1rs 2rs 3rs", []uint16{10, 10, 9}, 90}, {90, "1rs 2rs 3rs", []uint16{10, 10, 10}, -1}, {91, "1rs 2rs 3rs", []uint16{10, 10, 10}, -1},
		}},
		{"steps that are late", []at{{-1, "1rs", []uint16{10}, -1}, {0, "1rs 2rs", []uint16{10, 1}, 10}, {35, "1rs 2rs", []uint16{10, 4}, 40}}},
		{"two endpoints at two times", []at{
			{-1, "2rs", []uint16{10}, -1}, {0, "1rs 2rs", []uint16{1, 10}, 10}, {15, "1rs 2rs 3rs", []uint16{2, 10, 1}, 20},
			{25, "1rs 2rs 3rs", []uint16{3, 10, 2}, 30}, {90, "1rs 2rs 3rs", []uint16{10, 10, 8}, 95}, {105, "1rs 2rs 3rs", []uint16{10, 10, 10}, -1},
		}},
		{"an endpoint returns", []at{
			{-1, "1rs 2rs", []uint16{10, 10}, -1}, {0, "1rs", []uint16{10}, -1}, {1, "1rs 2rs", []uint16{10, 1}, 11}, {50, "1rs 2", []uint16{10}, -1},
			{51, "1rs 2rs", []uint16{10, 1}, 61},
		}},
		{"an endpoint is not ready at first", []at{
			{-1, "1rs", []uint16{10}, -1}, {0, "1rs 2", []uint16{10}, -1}, {30, "1rs 2rs", []uint16{10, 1}, 40},
		}},
		{"none of the endpoints stays", []at{{-1, "1rs 2rs", []uint16{10, 10}, -1}, {0, "3rs 4rs", []uint16{1, 1}, 10}}},
		{"there was no endpoint", []at{
			{-1, "", nil, -1}, {0, "1rs", []uint16{10}, -1}, {89, "1rs 2rs", []uint16{10, 10}, -1}, {90, "1rs 2rs 3rs", []uint16{10, 10, 1}, 100},
		}},
		{"there was no endpoint for a moment", []at{
			{-1, "1rs", []uint16{10}, -1}, {100, "", nil, -1}, {101, "2rs 3rs", []uint16{10, 10}, -1}, {102, "1rs 2rs 3rs", []uint16{10, 10, 10}, -1},
			{103, "1rs 2rs 3rs 4rs", []uint16{10, 10, 10, 10}, -1},
		}},
		{"the Service is old, the annotation is new", []at{{0, "1rs", []uint16{10}, -1}, {1, "1rs 2rs", []uint16{10, 1}, 11}}},
		{"terminating endpoints", []at{
			{-1, "1rs", []uint16{10}, -1}, {0, "1rs 2rs", []uint16{10, 1}, 10}, {10, "1st 2rs", []uint16{2}, 20}, {20, "1st 2st", []uint16{10, 10}, -1},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var r rebuilder
			for _, o := range tc.list {
				built := r.build(o.seconds, o.endpoints, balance.Random)
				lab.Same(t, o.weights, built.Ports[0].ClusterWeights, "weights after %d s", o.seconds)
				want := time.Time{}
				if o.next >= 0 {
					want = began.Add(time.Duration(o.next) * time.Second)
				}
				if next := r.starts.Next(); !next.Equal(want) {
					t.Errorf("after %d s, the next step is at %v, want %v", o.seconds, next, want)
				}
				if got, full := built.Ports[0].Slots(), fullShare*len(o.weights); got != full {
					t.Errorf("after %d s, %d slots count, want %d of the full weights", o.seconds, got, full)
				}
			}
		})
	}
}

// All endpoints of a Service that has just been created have their full weight, even if its slices arrive one after the other.
func TestSlowStartOfANewService(t *testing.T) {
	var before *Starts
	for _, tc := range []struct {
		seconds   time.Duration
		endpoints string
		want      []uint16
	}{{0, "1rs", []uint16{10}}, {1, "1rs 2rs", []uint16{10, 10}}, {30, "1rs 2rs 3rs", []uint16{10, 10, 1}}} {
		svc := service()
		svc.CreationTimestamp.Time, svc.Annotations = began, map[string]string{prefix + "slow-start": "30"}
		built := buildAt(svc, slice("a", eps(tc.endpoints)...), Options{}, before, began.Add(tc.seconds*time.Second))
		before = built.Starts
		lab.Same(t, tc.want, built.Ports[0].ClusterWeights, "weights after %d s", tc.seconds)
	}
}

func TestSlowStartSeconds(t *testing.T) {
	for text, want := range map[string]time.Duration{"1": time.Second, "30": 30 * time.Second, "3600": time.Hour, "0": 0, "3601": 0, "-1": 0, "30s": 0, "": 0, "1.5": 0} {
		svc := service()
		svc.Annotations = map[string]string{prefix + "slow-start": text}
		b := construct(Objects{Service: svc}, here, Options{})
		if b.slow != want || (len(b.problems.list) == 0) != (want > 0) {
			t.Errorf("%q: slow start of %v, problems %+v", text, b.slow, b.problems.list)
		}
	}
}

// With a hash, weights are relative, also if a product would not fit. With random and weights, each unit of weight has as many slots as a full share.
func TestSlowStartWithWeights(t *testing.T) {
	for _, tc := range []struct {
		name, weights string
		want          []uint16
	}{
		{balance.Random, "10.1.0.1=4,10.1.0.2=2", []uint16{40, 20, 1}},
		{balance.Maglev, "10.1.0.1=4,10.1.0.2=2", []uint16{40, 20, 1}},
		{balance.Maglev, "10.1.0.1=50000,10.1.0.2=6,10.1.0.3=15", []uint16{25000, 3, 1}},
		{balance.Maglev, "10.1.0.1=5,10.1.0.2=5,10.1.0.3=50", nil},
	} {
		svc := service()
		svc.Annotations = map[string]string{prefix + "slow-start": "90", annotationAlgorithm: tc.name}
		var built *Service
		var before *Starts
		for step, endpoints := range []string{"1rs 2rs", "1rs 2rs 3rs"} {
			s := slice("a", eps(endpoints)...)
			s.Annotations = map[string]string{prefix + "weights": tc.weights}
			built = buildAt(svc, s, Options{}, before, began.Add(time.Duration(step)*time.Second))
			before = built.Starts
		}
		lab.Same(t, tc.want, built.Ports[0].ClusterWeights, "%s, weights %s", tc.name, tc.weights)
	}
}

// Above the limit of slots there is no slow start, and weights and hashes stay.
func TestSlowStartAboveTheLimit(t *testing.T) {
	for _, tc := range []struct {
		algorithm string
		limit     int
		exceeded  bool
		want      []uint16
		key       balance.Key
	}{
		{balance.Random, 30, false, []uint16{10, 10, 1}, balance.Chance},
		{balance.Random, 29, true, nil, balance.Chance},
		{balance.Maglev, 251, false, []uint16{10, 10, 1}, balance.Flow},
		{balance.Maglev, 250, true, nil, balance.Chance},
	} {
		r := rebuilder{opts: Options{Limits: DefaultLimits()}}
		r.opts.Limits.Slots = tc.limit
		r.build(-1, "1rs 2rs", tc.algorithm)
		got := r.build(0, "1rs 2rs 3rs", tc.algorithm)
		if diff := cmp.Diff(tc.want, got.Ports[0].ClusterWeights); diff != "" || got.Ports[0].Method.Key != tc.key {
			t.Errorf("%s, limit %d: %s, weights (-want +got):\n%s", tc.algorithm, tc.limit, got.Ports[0].Method, diff)
		}
		if slots := exceeded(got); (slots != nil) != tc.exceeded {
			t.Errorf("%s, limit %d: exceeded limits %v", tc.algorithm, tc.limit, slots)
		}
		if next := r.starts.Next(); next.IsZero() == (tc.want != nil) {
			t.Errorf("%s, limit %d: the next step is at %v", tc.algorithm, tc.limit, next)
		}
	}
}

// The shares survive JSON, which the command diff reads.
func TestSharesAsJSON(t *testing.T) {
	var r rebuilder
	r.build(-1, "1rs 4rs", balance.Random)
	r.build(0, "1rs 3rs 4rs", balance.Random)
	want := r.build(25, "1rs 2rs 3rs 4rs 5rs", balance.Random)
	text, err := json.Marshal(r.starts.Shares())
	var shares []Share
	if err == nil {
		err = json.Unmarshal(text, &shares)
	}
	if err != nil || len(shares) != 3 {
		t.Fatalf("%v: %s, want three endpoints", err, text)
	}
	svc := service()
	svc.Annotations = map[string]string{prefix + "slow-start": "90"}
	got := buildFrom(svc, []*discoveryv1.EndpointSlice{slice("a", eps("1rs 2rs 3rs 4rs 5rs")...)}, here, Options{Starts: StartsOf(shares)})
	want.Starts, got.Starts = nil, nil
	if diff := cmp.Diff(want, got, exact); diff != "" {
		t.Errorf("from %s (-want +got):\n%s", text, diff)
	}
	lab.Same(t, []uint16{10, 1, 3, 10, 1}, got.Ports[0].ClusterWeights, "weights")
}
