// Package services installs real servers, starts them on free loopback ports
// and stops them, for tests, benchmarks and demonstrations.
//
// A server runs as a child of this process. If this process is root, the server
// runs as an unprivileged user. The server ends with this process, even if that
// is killed. Its data is in its own directory, which Close removes, under the
// directory SEMEL_SERVICES_DIR of the environment or [os.TempDir]. The next start of a server removes directories of killed processes.
//
// A server is ready when it answers in its protocol and is the one that was
// started. Another server may have taken the port between the check of the port
// and the start.
//
// Tests use package servicestest, which skips or fails if a server is not
// installed. Servers run on Linux only. On other systems every start returns an
// error.
package services

import "errors"

// ErrNotInstalled is wrapped by errors that name the command which installs the
// missing program.
var ErrNotInstalled = errors.New("not installed")

// ErrLocked is returned by [Lock] if another process has the lock.
var ErrLocked = errors.New("services: locked by another process")
