// Command semel makes messages take effect once; see semel --help.
package main

import (
	"os"

	"github.com/semel-dev/semel/connector"
	"github.com/semel-dev/semel/program"
)

func main() { os.Exit(run()) }

func run() int { return program.Main(connector.Kinds{}) }
