package invalid_test

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/invalid"
)

func TestOneErrorNamesAllInvalidFields(t *testing.T) {
	t.Parallel()
	wrong := invalid.In("p: Options.")
	wrong.Join(nil)
	if err := wrong.Err(); err != nil {
		t.Errorf("nothing is wrong, and there is an error: %v", err)
	}
	wrong.Add("Key is missing")
	wrong.Add("Wait: %d is below %d", 0, 1)
	wrong.Join(nil, io.EOF)
	want := fmt.Sprintf("p: Options.Key is missing: %[1]v\np: Options.Wait: 0 is below 1: %[1]v\nEOF", semel.ErrInvalidRequest)
	if err := wrong.Err(); err == nil || err.Error() != want || !errors.Is(err, semel.ErrInvalidRequest) || !errors.Is(err, io.EOF) {
		t.Errorf("%v, want %s", err, want)
	}
}
