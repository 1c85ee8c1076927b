package services

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
)

// template returns a directory that is copied for each server. It is made once
// for each text that says what it is made of; several processes may want it at
// once. It is for the user that servers run as to write while it is made.
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
	defer func() { _ = os.RemoveAll(parent) }() // it is only in the way
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
