// Package pgstore keeps keys in PostgreSQL.
package pgstore
