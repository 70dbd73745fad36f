package main

import (
	"context"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// push writes an index and its images to a registry, with the credentials that "docker login" left, and returns the
// reference by digest.
func push(ctx context.Context, to string, index v1.ImageIndex) (name.Digest, error) {
	tag, err := name.NewTag(to)
	if err != nil {
		return name.Digest{}, err
	}
	if err := remote.WriteIndex(tag, index, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
		return name.Digest{}, err
	}
	digest, err := index.Digest()
	if err != nil {
		return name.Digest{}, err
	}
	return tag.Digest(digest.String()), nil
}
