package model

import (
	"fmt"
	"slices"
	"strings"
)

// The author of an object chooses its texts, and their lengths. A text or list that is above its limit is cut before
// the object is stored, so that the loop reads only the part below the limit. The limits of texts are far above the
// length of any valid text.
const (
	// LongestText is the limit in bytes of each text, except lists in annotations: a name, an address, or the value of
	// an annotation.
	LongestText = 1 << 10
	// LongestList is the limit in bytes of a list in an annotation. It suffices for 1,000 IPv6 addresses with weights.
	LongestList = 64 << 10
	// mostItems is the limit of the items of a list in an annotation, and of spec.loadBalancerSourceRanges.
	mostItems = 2_000
	// MostHints is the limit of the zones, and of the nodes, in the hints of an endpoint. The API server allows 8.
	MostHints = 64
	// MostFamilies is the limit of the IP families, and of the cluster IPs, of a Service. The API server has the same
	// one.
	MostFamilies = 2
	// mostUnknown limits the stored annotations without a meaning: the author of a Service may write thousands.
	mostUnknown = 20
)

// cutMark is the end of a cut text. No valid text ends with it.
const cutMark = "…"

// Cut returns a text without the bytes above a limit. A cut text is not valid: it does not equal another text, and its
// length is above the limit.
func Cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return text[:most] + cutMark
}

// StoredAnnotations returns the annotations of a Service, or of an EndpointSlice, that the program reads. Of a
// Service, it also returns the first unknown annotations by name that have the program's prefix, without their
// values: they become problems.
func StoredAnnotations(all map[string]string, slice bool) (stored map[string]string) {
	store := func(name, text string) {
		if stored == nil {
			stored = map[string]string{}
		}
		stored[name] = text
	}
	var unknown []string
	for name, text := range all {
		i := slices.IndexFunc(Annotations, func(a Annotation) bool { return a.Name == name && a.OfSlices() == slice })
		if i >= 0 {
			store(name, Cut(text, Annotations[i].Longest()))
		} else if !slice && strings.HasPrefix(name, prefix) {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown) // all nodes store the same ones
	for _, name := range unknown[:min(len(unknown), mostUnknown)] {
		store(Cut(name, LongestText), "")
	}
	return stored
}

// Longest returns the limit in bytes of the value of the annotation.
func (a *Annotation) Longest() int {
	if a.List {
		return LongestList
	}
	return LongestText
}

// Items returns the limit of the items of a list of source ranges, or of a list in an annotation.
func (l *Limits) Items() int { return max(mostItems, 2*l.SourceRanges) } //nolint:mnd // two families

// itemsOf returns the items of a list in an annotation. It parses no item of a list that is above a limit, and returns
// an error.
func (l *Limits) itemsOf(text string) ([]string, error) {
	if len(text) > LongestList {
		return nil, fmt.Errorf("the list has more than %d bytes", LongestList)
	}
	if n := strings.Count(text, ",") + 1; n > l.Items() {
		return nil, fmt.Errorf("the list has %d items, above the limit of %d", n, l.Items())
	}
	return strings.Split(text, ","), nil
}
