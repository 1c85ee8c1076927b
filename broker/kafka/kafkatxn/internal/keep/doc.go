// Package keep decides which record of a key takes effect if that is not simply the first
// one that was read. It holds records of one partition until no other can replace them,
// or remembers the newest version of each key. It knows nothing of Kafka.
package keep
