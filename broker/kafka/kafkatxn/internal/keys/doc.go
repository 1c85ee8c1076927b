// Package keys holds the keys of one partition that is decided. It has the state that
// decides, the records of its changelog, its copy on disk, and the positions up to which
// the changelog can be deleted.
package keys
