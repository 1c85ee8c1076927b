// Package services installs real servers, starts them on free loopback ports
// and stops them: for tests, benchmarks and demonstrations.
package services
