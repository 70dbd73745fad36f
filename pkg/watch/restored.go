package watch

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// current returns an error that has a reflector read everything anew, where the API server is behind what a watch is to go on from: its
// data have been restored from a backup. Such a watch would be silent until as much has happened again, and what has gone with the
// restoration would never be told. One object is asked for, so that the answer comes from the data and not from what a server remembers.
func (r resource) current(ctx context.Context, o metav1.ListOptions) error {
	if o.SendInitialEvents != nil || o.ResourceVersion == "" || o.ResourceVersion == "0" {
		return nil // everything comes with it
	}
	_, now, err := r.listed(ctx, metav1.ListOptions{LabelSelector: o.LabelSelector, FieldSelector: o.FieldSelector, Limit: 1})
	if err != nil {
		return err
	}
	order, err := resourceversion.CompareResourceVersion(now, o.ResourceVersion)
	if err != nil || order >= 0 {
		return nil //nolint:nilerr // versions that can't be compared tell nothing
	}
	return apierrors.NewResourceExpired(fmt.Sprintf("the API server's data have resource version %s, older than the known version %s: "+
		"they were restored from a backup", now, o.ResourceVersion))
}
