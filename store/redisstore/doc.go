// Package redisstore keeps keys in Redis or Valkey: on a single server, with
// replicas, under Sentinel or in a cluster.
//
//	store, err := redisstore.Connect(ctx, "redis://localhost:6379", nil)
//
// # What is promised
//
// Nothing is lost: the store answers Duplicate only for a key that was
// completed. A missing answer is an unknown outcome, never a duplicate.
//
// Protection against a second effect is best effort. Redis may forget a key,
// and a message of that key may then have a second effect. This happens on
// failover to a replica that lags, on eviction, and on a restart unless the
// append-only file is synced before each answer. [Store.Examine] reports how a
// server is configured.
//
// Times are those of the server's clock. Leases, fencing tokens, take-over and
// results work as the contract of [semel.Store] says. Each call is one pipeline
// of scripts, and each script decides up to a few hundred keys. From Redis 7.0
// on, a key that is recorded as done in one step is a single SET with NX and
// GET.
//
// # What is kept
//
// All names begin with the prefix. The name of a record is the digest of its
// key. The secret of the digests is made when the prefix is first used, and is
// kept under the same prefix. A claim is kept until one hour after its lease
// ends, because it counts the attempts. A claim with hold is kept until it is
// resolved. A done key is kept for its window. The server expires all of these
// by itself, so the store needs no Purger.
//
// With [Options.Compact], a done key without result and fingerprint is half of
// its digest in a set of integers, which takes about a fifteenth of the memory.
//
// # Permissions
//
// An ACL user of the server needs these permissions and no more. +bf.* is only
// for a filter that a module keeps, +cluster only for a cluster, and +select
// only for a database other than 0. With +config|get the doctor checks more.
//
// The constant [Permissions] has the commands.
//
//	ACL SETUSER semel on >PASSWORD ~semel:* +ping +select +info +time +eval +evalsha +get +set +del +pttl +pexpireat +sadd +srem +sismember +scard +getrange +strlen +scan +memory|usage +rpush +bitfield +incrby +bf.insert +bf.exists +bf.mexists +bf.info +cluster|slots +cluster|shards +cluster|info
//
// Replace semel:* if the store has another prefix.
package redisstore
