package kubelet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// volume returns the file or folder that stands for a volume, with its present content.
func (k *Kubelet) volume(ctx context.Context, p *corev1.Pod, v corev1.Volume) (path string, err error) {
	dir := filepath.Join(k.Dir, string(p.UID), "volumes", v.Name)
	switch {
	case v.HostPath != nil:
		return k.hostPath(v.HostPath)
	case v.EmptyDir != nil:
		return dir, os.MkdirAll(dir, 0o777)
	case v.ConfigMap != nil:
		files, err := k.configMap(ctx, p.Namespace, v.ConfigMap.Name, v.ConfigMap.Items)
		if err != nil {
			return "", err
		}
		return dir, write(dir, files)
	case v.Projected != nil:
		files := map[string]string{}
		for _, source := range v.Projected.Sources {
			some, err := k.projected(ctx, p, source)
			if err != nil {
				return "", err
			}
			maps.Copy(files, some)
		}
		return dir, write(dir, files)
	}
	return "", fmt.Errorf("volume %s: its kind is not known here", v.Name)
}

func (k *Kubelet) projected(ctx context.Context, p *corev1.Pod, s corev1.VolumeProjection) (map[string]string, error) {
	switch {
	case s.ServiceAccountToken != nil:
		request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			ExpirationSeconds: s.ServiceAccountToken.ExpirationSeconds,
			BoundObjectRef:    &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: p.Name, UID: p.UID},
		}}
		request, err := k.client.CoreV1().ServiceAccounts(p.Namespace).CreateToken(
			ctx, p.Spec.ServiceAccountName, request, metav1.CreateOptions{})
		if err != nil {
			return nil, err
		}
		return map[string]string{s.ServiceAccountToken.Path: request.Status.Token}, nil
	case s.ConfigMap != nil:
		return k.configMap(ctx, p.Namespace, s.ConfigMap.Name, s.ConfigMap.Items)
	case s.DownwardAPI != nil:
		files := map[string]string{}
		for _, item := range s.DownwardAPI.Items {
			if item.FieldRef == nil || item.FieldRef.FieldPath != "metadata.namespace" {
				return nil, fmt.Errorf("field for file %s: not known here", item.Path)
			}
			files[item.Path] = p.Namespace
		}
		return files, nil
	}
	return nil, errors.New("source of a projected volume: its kind is not known here")
}

func (k *Kubelet) configMap(ctx context.Context, namespace, name string, items []corev1.KeyToPath) (map[string]string, error) {
	m, err := k.client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil || len(items) == 0 {
		return m.Data, err
	}
	files := map[string]string{}
	for _, item := range items {
		files[item.Path] = m.Data[item.Key]
	}
	return files, nil
}

// Machine returns the root folder of a made-up machine.
func (k *Kubelet) Machine() string { return filepath.Join(k.Dir, "machine") }

// hostPath is a file or folder of a made-up machine, except below /proc, where there is only one.
func (k *Kubelet) hostPath(v *corev1.HostPathVolumeSource) (string, error) {
	path := filepath.Join(k.Machine(), v.Path)
	if strings.HasPrefix(v.Path, "/proc/") {
		path = v.Path
	}
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if v.Type != nil && *v.Type == corev1.HostPathFileOrCreate {
		return path, makeMountPoint(path, false)
	}
	if v.Type != nil && *v.Type != corev1.HostPathUnset && *v.Type != corev1.HostPathDirectoryOrCreate {
		return "", fmt.Errorf("find %s, as type %s has it: there is none", v.Path, *v.Type)
	}
	return path, makeMountPoint(path, true)
}

// makeMountPoint makes an empty file or folder unless it is there.
func makeMountPoint(path string, folder bool) error {
	if folder {
		return os.MkdirAll(path, 0o755)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o644)
	if errors.Is(err, os.ErrNotExist) {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		return makeMountPoint(path, false)
	}
	if err != nil {
		return err
	}
	return file.Close()
}

// write makes files the content of a volume as the kubelet does (pkg/volume/util/atomic_writer.go): each version is a folder, a
// link leads to the present one, and a link by it to each file. A volume that has this content already stays as it is.
func write(dir string, files map[string]string) error {
	present, err := read(filepath.Join(dir, "..data"))
	if err == nil && maps.Equal(present, files) {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	old, _ := os.Readlink(filepath.Join(dir, "..data")) // none at first
	version, err := os.MkdirTemp(dir, "..version_")
	if err != nil {
		return err
	}
	errs := []error{os.Chmod(version, 0o755)}
	for name, text := range files {
		errs = append(errs, os.WriteFile(filepath.Join(version, name), []byte(text), 0o644))
	}
	next := filepath.Join(dir, "..data_tmp")
	errs = append(errs, os.Symlink(filepath.Base(version), next), os.Rename(next, filepath.Join(dir, "..data")))
	for name := range files {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)); !errors.Is(err, os.ErrExist) {
			errs = append(errs, err)
		}
	}
	for name := range present {
		if _, stays := files[name]; !stays {
			errs = append(errs, os.Remove(filepath.Join(dir, name)))
		}
	}
	if old != "" {
		errs = append(errs, os.RemoveAll(filepath.Join(dir, old)))
	}
	return errors.Join(errs...)
}

func read(dir string) (map[string]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	files := map[string]string{}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		files[e.Name()] = string(text)
	}
	return files, nil
}
