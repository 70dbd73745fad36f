package page

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// Results are measured results in a checkout: a list as JSON, and its tables in a part of a page.
type Results[T any] struct {
	// File and Page are paths in the checkout, Part is the name of the part.
	File, Page, Part string
	// Tables returns the part for a list.
	Tables func([]T) string
}

// Read returns the list of a checkout; an empty one without the file.
func (r *Results[T]) Read(root string) (list []T, err error) {
	if err = ReadJSON(filepath.Join(root, r.File), &list); errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return list, err
}

// Publish changes the list of a checkout, and writes it with its tables.
func (r *Results[T]) Publish(root string, change func([]T) []T) error {
	list, err := r.Read(root)
	if err != nil {
		return err
	}
	list = change(list)
	if err := WriteJSON(filepath.Join(root, r.File), list); err != nil {
		return err
	}
	return Write(filepath.Join(root, r.Page), r.Part, r.Tables(list))
}

// Check fails unless the page of a checkout has the tables of its list.
func (r *Results[T]) Check(t *testing.T, root string) {
	t.Helper()
	list, err := r.Read(root)
	lab.Must(t, err)
	text, err := os.ReadFile(filepath.Join(root, r.Page))
	lab.Must(t, err)
	part, err := Part(string(text), r.Part)
	lab.Must(t, err)
	if len(list) == 0 {
		t.Errorf("%s has no results", r.File)
	}
	lab.Same(t, r.Tables(list), part, "%s: Publish writes both files", r.Page)
}

// ReadJSON reads a value from a file.
func ReadJSON(file string, v any) error {
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, v)
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	return nil
}

// WriteJSON writes a value to a file.
func WriteJSON(file string, v any) error {
	text, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}
