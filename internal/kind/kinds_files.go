//go:build files

// Package kind lists the kinds of sources, sinks and stores of the program. Each
// one is a package below this one; see DESIGN.md.
package kind

import (
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/kind/embedded"
	"github.com/semel-dev/semel/internal/kind/file"
	"github.com/semel-dev/semel/internal/kind/memory"
	"github.com/semel-dev/semel/internal/kind/stdout"
)

// All returns every kind that needs no server, in the order of messages and listings.
func All() *config.Kinds {
	return &config.Kinds{
		Sources: []func() config.Source{file.NewSource},
		Sinks:   []func() config.Sink{file.NewSink, stdout.NewSink},
		Stores:  []func() config.StoreKind{memory.NewStore, embedded.NewStore},

		Directory: embedded.At, Memory: memory.NewStore,
		Missing: "this build has the kinds for files only: build all kinds with go install ./cmd/semel",
	}
}
