//go:build !linux

// Command services installs and starts real servers, on Linux.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "services: servers are started on Linux only; give tests the addresses of others by SEMEL_TEST_REDIS, SEMEL_TEST_POSTGRES and SEMEL_TEST_KAFKA")
	os.Exit(1)
}
