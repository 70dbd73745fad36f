package watch

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/kubeapi"
)

// User returns the API server's name of the client's user. Every authenticated user may query this name.
func User(ctx context.Context, client *kubeapi.Client) (string, error) {
	review, err := client.Reviews.Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("query the user name: %w", err)
	}
	return review.Status.UserInfo.Username, nil
}
