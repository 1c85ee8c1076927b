package result

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// saveFile writes a value as a file.
func saveFile(dir, name string, value any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(value); err != nil {
		return fmt.Errorf("result: save %q: %w", name, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("result: save %q: %w", name, err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".json"), b.Bytes(), 0o644); err != nil {
		return fmt.Errorf("result: save %q: %w", name, err)
	}
	return nil
}

// loadFiles reads all files of dir, in the order of their names.
func loadFiles[T any](dir string, name func(*T) string) ([]T, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, fmt.Errorf("result: list %s: %w", dir, err)
	}
	list := make([]T, len(files))
	for i, file := range files {
		if err := loadFile(file, &list[i]); err != nil {
			return nil, fmt.Errorf("result: load %s: %w", file, err)
		}
		if want := filepath.Base(file); name(&list[i])+".json" != want {
			return nil, fmt.Errorf("result: load %s: the name %q does not belong into %s", file, name(&list[i]), want)
		}
	}
	return list, nil
}

// loadFile reads one file. It refuses fields that it does not know.
func loadFile(file string, value any) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(value); err != nil {
		return err
	}
	if _, err := dec.Token(); err != io.EOF {
		return errors.New("there is more after the result")
	}
	return nil
}
