// Command bento is Bento with only the components of the benchmark's pipeline.
package main

import (
	"context"

	_ "github.com/warpstreamlabs/bento/public/components/io"
	_ "github.com/warpstreamlabs/bento/public/components/pure"
	"github.com/warpstreamlabs/bento/public/service"
)

func main() { service.RunCLI(context.Background()) }
