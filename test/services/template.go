package services

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
)

// template returns a directory that is copied for each server. It is created once for each text
// of a description, even if several processes need it concurrently. While fill runs, the user of
// servers can write to the directory.
func template(kind, of string, fill func(dir string) error) (string, error) {
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	name := fmt.Sprintf("%s-%.8x", kind, sha256.Sum256([]byte(of)))
	finished := filepath.Join(cache, name)
	held, err := Lock(finished+".lock", true)
	if err != nil {
		return "", err
	}
	defer func() { _ = held.Close() }() // nothing was written
	if _, err := os.Stat(finished); err == nil {
		return finished, nil
	}
	parent, err := os.MkdirTemp(cache, name+"-*")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(parent) }() // a leftover does no harm
	if err := giveAway(parent); err != nil {
		return "", err
	}
	made := filepath.Join(parent, "data")
	if err := os.Mkdir(made, 0o700); err != nil {
		return "", err
	}
	if err := giveAway(made); err != nil {
		return "", err
	}
	if err := fill(made); err != nil {
		return "", err
	}
	return finished, os.Rename(made, finished)
}
