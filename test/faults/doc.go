// Package faults proves what the stores promise while their servers, and the
// network between, fail.
package faults
