// Package copies turns records into copies, which have their original in a header, and
// copies back into records. Records that are held become bytes, and records again.
package copies
