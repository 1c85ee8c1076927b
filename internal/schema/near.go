package schema

import (
	"strings"

	"github.com/semel-dev/semel/internal/hint"
)

// OneOf lists the allowed values, or suggests the closest one.
func OneOf(got string, allowed []string) string {
	if near, ok := hint.Nearest(got, allowed); ok {
		return "did you mean " + near + "?"
	}
	return "write one of " + strings.Join(allowed, ", ")
}
