package config

import (
	"github.com/semel-dev/semel/internal/schema"
)

// Store is one member of "stores".
type Store struct {
	Name string
	// At is the place of its name.
	At   schema.Place
	Spec Spec
}
