// Package tiered stacks stores: filters and caches above one durable store.
package tiered
