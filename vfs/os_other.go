//go:build !linux

package vfs

import (
	"errors"
	"os"
)

func syncData(f *os.File) error { return f.Sync() }

func reserve(*os.File, int64, int64) error { return errors.ErrUnsupported }
