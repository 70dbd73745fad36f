package watch

import (
	"bufio"
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

func read(t *testing.T, data []byte) (*storedList, error) {
	t.Helper()
	return readList(bufio.NewReaderSize(bytes.NewReader(data), 16), sliceDecoder().convert)
}

// A list has the same stored forms as its objects.
func TestListStores(t *testing.T) {
	remaining := int64(3)
	sentList := &discoveryv1.EndpointSliceList{ListMeta: metav1.ListMeta{ResourceVersion: "9", RemainingItemCount: &remaining}}
	var want []*object
	for i := range 3 {
		slice := bigSlice(7+i, 3*i)
		sentList.Items = append(sentList.Items, *slice)
		want = append(want, encodeForTest(t, slice))
	}
	data := sent(t, sentList, discoveryv1.SchemeGroupVersion)
	list, err := read(t, data)
	lab.Must(t, err)
	var got []*object
	for _, item := range list.Items {
		got = append(got, item.(*object))
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(object{})); diff != "" {
		t.Errorf("stored forms (-of the structs +of the list):\n%s", diff)
	}
	lab.Same(t, sentList.ListMeta, list.ListMeta, "metadata of the list")

	// The end of an incomplete answer is never the end of a list, nor the regular end of a watch.
	const emptyFields = 4 // after the list
	for n := range len(data) - emptyFields {
		if _, err := read(t, data[:n]); err == nil || isEnd(err) {
			t.Fatalf("the first %d of %d bytes were read as a list: %v", n, len(data), err)
		}
	}
	if _, err := read(t, sent(t, bigSlice(7, 3), discoveryv1.SchemeGroupVersion)); err == nil || !strings.Contains(err.Error(), `the kind is "EndpointSlice"`) {
		t.Errorf("an EndpointSlice was read as a list: %v", err)
	}
	if _, err := read(t, []byte(`{"kind":"EndpointSliceList"}`)); !errors.Is(err, errNotProtobuf) {
		t.Errorf("JSON: %v, want %v", err, errNotProtobuf)
	}
}
