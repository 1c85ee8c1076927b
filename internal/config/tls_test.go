package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/semel-dev/semel"
)

func TestBadTLSFilesAreNamed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	empty, missing := filepath.Join(dir, "empty"), filepath.Join(dir, "missing")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for want, files := range map[string]TLS{
		missing:                  {CA: missing},
		empty:                    {CA: empty},
		"open " + missing:        {Certificate: missing, Key: empty},
		"failed to find any PEM": {Certificate: empty, Key: empty},
	} {
		if _, err := files.Config(); !errors.Is(err, semel.ErrInvalidRequest) || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v; want it to say %s", files, err, want)
		}
	}
}
