// Package services installs real servers, starts them on free loopback ports
// and stops them: for tests, benchmarks and demonstrations.
//
// A server runs as a child of this process, as an unprivileged user where we
// are root, and dies with this process even if that is killed. Its data is in
// a directory of its own under [os.TempDir], which Close removes; what a killed
// process left there, the next start of a server removes.
//
// "Ready" means that the server answered in its protocol and that it is ours:
// another one may have taken the port between our look and its start.
//
// Tests use package servicestest, which skips or fails where a server is not
// installed. Servers are started on Linux; elsewhere every start says so.
package services

import "errors"

// ErrNotInstalled is wrapped by errors that say which command installs what is
// missing.
var ErrNotInstalled = errors.New("not installed")

// ErrLocked is returned by [Lock] if another process has the lock.
var ErrLocked = errors.New("services: locked by another process")
