//go:build !unix

package dedup

import (
	"context"
	"os"
)

// readable cannot know on this system, so lines are passed on after each read.
func readable(*os.File) bool { return false }

// waitReadable does nothing; the read itself waits.
func waitReadable(context.Context, *os.File) error { return nil }
