package track

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

func TestPending(t *testing.T) {
	tr := newTracker()
	if got := tr.Pending(); got != (Pending{}) {
		t.Errorf("of nothing: %+v", got)
	}
	first := start.Add(time.Minute)
	tr.MarkService(web)
	tr.MarkService(db)
	want := Pending{Services: 2, Others: true, Since: first, Latest: first}
	for range 2 { // Pending takes no marks
		if got := tr.Pending(); got != want {
			t.Errorf("of two Services: %+v, want %+v", got, want)
		}
	}
	tr.Take()
	tr.Take()
	if got, want := tr.Pending(), (Pending{Latest: first}); got != want {
		t.Errorf("after they were taken: %+v, want %+v", got, want)
	}
	tr.MarkService(web)
	if got := tr.Pending(); got.Others {
		t.Errorf("%+v: the set has no Service of another namespace than before", got)
	}
	tr.MarkSlice(types.NamespacedName{Namespace: "another"}, Trigger{})
	if got := tr.Pending(); !got.Others {
		t.Errorf("%+v: the set has a Service of another namespace than before", got)
	}
}
