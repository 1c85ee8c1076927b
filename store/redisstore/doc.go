// Package redisstore keeps keys in Redis or Valkey: single, replicated, under
// Sentinel or as a cluster.
//
// # What is promised
//
// Nothing is lost: a key is answered Duplicate only after it was completed, and
// an answer that did not come is an unknown outcome, never a duplicate. Against
// a second effect a claim in Redis is best effort. What the server forgets may
// have its effect again: on failover to a replica that lags, on eviction, and
// on a restart without an append-only file that is synced always. [semel.Doctor]
// says how a server is configured.
//
// Time is the server's. Leases, fencing tokens, take-over and results work as
// the contract says; each call is one pipeline of scripts, in which the server
// decides up to a few hundred keys at once. A key that is recorded as done in
// one step, from Redis 7.0 on, is a single SET with NX and GET.
//
// # What is kept
//
// All names begin with the prefix. The name of a record is its key's digest,
// under a secret that is made when the prefix is first used and kept beside it.
// A claim is kept for an hour after its lease, for the sake of the attempt that
// is counted; one with hold until it is resolved; what is done for its window.
// Nothing else needs to be cleaned, so there is no Purger.
//
// With [Options.Compact] a key that is done and has neither a result nor a
// fingerprint is half of its digest in a set of such numbers: about a fifteenth
// of the memory.
//
// # What the user may do
//
// An ACL user of the server needs these permissions and no more; +bf.* only for
// a filter kept by a module, +cluster only in a cluster, +select only for a
// database other than 0. With +config|get the doctor sees more.
//
//	ACL SETUSER semel on >PASSWORD ~semel:* +ping +select +info +time +eval +evalsha +get +set +del +pttl +pexpireat +sadd +srem +sismember +scard +getrange +strlen +scan +memory|usage +rpush +bitfield +incrby +bf.insert +bf.exists +bf.mexists +bf.info +cluster|slots +cluster|shards +cluster|info
//
// The pattern is the prefix of the store.
package redisstore
