package watch

import (
	"bufio"
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

func read(t *testing.T, data []byte) (*storedList, error) {
	t.Helper()
	return readList(bufio.NewReaderSize(bytes.NewReader(data), 16), sliceConverter(func(p model.Problem) { t.Errorf("problem: %+v", p) }))
}

func sliceConverter(report func(model.Problem)) converter {
	return converting("EndpointSlice", (&Config{}).transformer().slice, report)
}

// An object that cannot be decoded is absent and reported, and all others are present.
func TestUnreadableObjectsAreLeftOut(t *testing.T) {
	list := &discoveryv1.EndpointSliceList{Items: []discoveryv1.EndpointSlice{*slice("shop", "web-1", "web"), *slice("shop", "web-2", "web")}}
	list.Items[0].Endpoints[0].Addresses[0] = "10.0.0.7"
	data := sent(t, list, discoveryv1.SchemeGroupVersion)
	garbled := bytes.Replace(data, []byte("\x0810.0.0.7"), []byte("\x7f10.0.0.7"), 1) // the length of the address
	if bytes.Equal(data, garbled) {
		t.Fatal("nothing is garbled")
	}
	var problems []model.Problem
	convert := sliceConverter(func(p model.Problem) { problems = append(problems, p) })
	got, err := readList(bufio.NewReader(bytes.NewReader(garbled)), convert)
	lab.Must(t, err)
	broken, sound := got.Items[0].(*object), got.Items[1].(*object)
	if broken.value != nil || broken.Name != "web-1" || sound.value == nil || sound.Name != "web-2" {
		t.Errorf("stored: %+v, %+v", broken, sound)
	}
	if len(problems) != 1 || problems[0].Name.Name != "web-1" || !strings.Contains(problems[0].Reason, "cannot be read") {
		t.Errorf("reported: %+v", problems)
	}
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
	if !slices.EqualFunc(want, got, func(a, b *object) bool {
		return same(a, b) && a.NamespacedName == b.NamespacedName && a.version == b.version
	}) {
		t.Errorf("stored forms of the list: %v, want those of its objects: %v", got, want)
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
