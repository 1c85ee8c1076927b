// Package health decides whether a pipeline stalls, and which part of an error
// any client may see.
package health
