package config

import (
	"github.com/semel-dev/semel/internal/schema"
)

// Store is one member of "stores".
type Store struct {
	Name string
	// At is where its name stands.
	At   schema.Place
	Spec Spec
}
