// Command bento is Bento with the components that the benchmark's pipeline
// names and no others.
package main

import (
	"context"

	_ "github.com/warpstreamlabs/bento/public/components/io"
	_ "github.com/warpstreamlabs/bento/public/components/pure"
	"github.com/warpstreamlabs/bento/public/service"
)

func main() { service.RunCLI(context.Background()) }
