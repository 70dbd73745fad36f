package config

import (
	"bytes"
	"fmt"
	"os"
	"regexp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"
)

// decode parses a configuration file and sets the defaults. Unknown, duplicate and misspelt fields are ignored, each
// with a note. Other mistakes are errors, in kube-proxy's words.
func decode(data []byte) (*kubeproxy.KubeProxyConfiguration, []Note, error) {
	var notes []Note
	c, strict := decodeWith(data, serializer.EnableStrict)
	if strict != nil {
		if !runtime.IsStrictDecodingError(strict) {
			return nil, nil, fmt.Errorf("failed to decode: %w", strict)
		}
		var err error
		if c, err = decodeWith(data, serializer.DisableStrict); err != nil {
			return nil, nil, fmt.Errorf("failed lenient decoding: %w", strict)
		}
		notes = strictNotes(strict)
	}
	if c.PortRange != "" {
		notes = append(notes, Note{Subject: "portRange", Text: "the field has no effect in kube-proxy either, and is " +
			"ignored"})
		c.PortRange = ""
	}
	setDefaults(c)
	return c, notes, nil
}

// unknownField is the error of a strict decoder about a field that the configuration of this version lacks.
var unknownField = regexp.MustCompile(`^unknown field "(.*)"$`)

// strictNotes returns a note for each error of a strict decoder.
func strictNotes(err error) (notes []Note) {
	strict, _ := runtime.AsStrictDecodingError(err)
	for _, err := range strict.Errors() {
		if m := unknownField.FindStringSubmatch(err.Error()); m != nil {
			notes = append(notes, Note{m[1], "unknown field, ignored: kube-proxy v" + Kubernetes + " has no such " +
				"field", true})
		} else {
			notes = append(notes,
				Note{"configuration file", "Using lenient decoding as strict decoding failed: " + err.Error(), true})
		}
	}
	return notes
}

func decodeWith(
	data []byte, strictness serializer.CodecFactoryOptionsMutator,
) (*kubeproxy.KubeProxyConfiguration, error) {
	codecs := serializer.NewCodecFactory(newScheme(), strictness)
	object, kind, err := codecs.UniversalDeserializer().Decode(data, nil, nil)
	if err != nil {
		return nil, err
	}
	c, ok := object.(*kubeproxy.KubeProxyConfiguration)
	if !ok {
		return nil, fmt.Errorf("got unexpected config type: %v", kind)
	}
	return c, nil
}

func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	if err := kubeproxy.AddToScheme(scheme); err != nil {
		panic(err) // impossible: the types of the library are constant
	}
	return scheme
}

// Write writes the effective configuration as kube-proxy does with --write-config-to.
func Write(path string, c *kubeproxy.KubeProxyConfiguration) error {
	data, err := encode(c)
	if err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o644) //nolint:gosec // the file holds no secret, and other users may read it
}

// Effective returns a copy of a configuration with the periods of the section of its mode only. The periods of other
// sections are ignored.
func Effective(c *kubeproxy.KubeProxyConfiguration) *kubeproxy.KubeProxyConfiguration {
	out := c.DeepCopy()
	out.SetGroupVersionKind(kubeproxy.SchemeGroupVersion.WithKind("KubeProxyConfiguration"))
	inUse, _ := periodsOf(out, c.Mode)
	for _, mode := range modes {
		if sync, min := periodsOf(out, mode); sync != inUse {
			*sync, *min = metav1.Duration{}, metav1.Duration{}
		}
	}
	return out
}

func encode(c *kubeproxy.KubeProxyConfiguration) ([]byte, error) {
	var b bytes.Buffer
	yaml := json.NewSerializerWithOptions(json.DefaultMetaFactory, nil, nil, json.SerializerOptions{Yaml: true})
	if err := yaml.Encode(Effective(c), &b); err != nil {
		return nil, fmt.Errorf("encode configuration: %w", err)
	}
	return b.Bytes(), nil
}
