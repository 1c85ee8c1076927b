// Package localcopy keeps a copy of one partition of a changelog on disk, for a state that
// is built from it.
package localcopy
