package watch

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// checkRestored returns an error if the API server's data are older than the version from which a watch continues: an administrator has restored a
// backup. After this error, the reflector lists all objects again. Without the error, the watch would report nothing until the server reaches that
// version again. It would never report the changes that the restoration reverted. checkRestored lists one object, so that the server answers from its
// data and not from a cache.
func (r resource) checkRestored(ctx context.Context, o metav1.ListOptions) error {
	if o.ResourceVersion == "" || o.ResourceVersion == anyVersion {
		return nil // the answer contains all objects
	}
	_, now, err := r.probe.withVersion(ctx, metav1.ListOptions{LabelSelector: o.LabelSelector, FieldSelector: o.FieldSelector, Limit: 1})
	if err != nil {
		return err
	}
	order, err := resourceversion.CompareResourceVersion(now, o.ResourceVersion)
	if err != nil || order >= 0 {
		return nil //nolint:nilerr // versions that cannot be compared
	}
	return apierrors.NewResourceExpired(fmt.Sprintf("the API server's data have resource version %s, older than the known version %s: "+
		"they were restored from a backup", now, o.ResourceVersion))
}
