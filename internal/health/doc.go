// Package health decides whether a pipeline stands still, and which part of an error
// any client may see.
package health
