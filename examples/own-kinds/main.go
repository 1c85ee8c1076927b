// Command own-kinds is semel with a source and a store of its own.
package main

import (
	"os"

	"github.com/semel-dev/semel/connector"
	"github.com/semel-dev/semel/program"
)

func main() { os.Exit(program.Main(kinds())) }

func kinds() connector.Kinds {
	return connector.Kinds{
		Sources: []func() connector.Source{newSpool},
		Stores:  []func() connector.Store{newShelf},
	}
}
