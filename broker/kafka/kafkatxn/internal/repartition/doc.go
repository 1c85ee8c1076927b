// Package repartition turns records into copies for a repartition stage, and copies back into the
// original records. It also turns held records into bytes, and bytes into records.
package repartition
