// Package config reads configuration files and the values that users write in
// files and flags: durations, counts, sizes, names. It makes no connections. It
// reports all faults of a file in one run, each with its place. Secrets are
// hidden wherever a value or an error is shown.
package config
