// Package diagnose finds what is wrong, for people: what an error of a server means and what
// to do about it, which part of an error any client may see, whether work stands still, what
// is in a body that no key rule can read, which process has what cannot be opened, and which
// name is closest to one that is unknown.
package diagnose
