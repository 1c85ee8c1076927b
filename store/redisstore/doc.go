// Package redisstore keeps keys in Redis or Valkey: single, replicated, under
// Sentinel or as a cluster.
package redisstore
