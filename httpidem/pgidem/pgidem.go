// Package pgidem is [httpidem] for handlers that write to PostgreSQL: a key, the writes of
// its request and the kept response commit in one transaction. No crash leaves it unknown
// whether the request took effect.
package pgidem

import (
	"context"
	"fmt"
	"net/http"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/httpidem"
	"github.com/semel-dev/semel/store/pgstore"
)

// New returns a handler that runs each request with a key once, in a transaction that next
// gets from [Tx]. It is [httpidem.NewAtomic] for PostgreSQL: the client gets the response
// after the commit, and a status of 500 or above rolls back. So do the statuses of
// Profile.Release and a panic.
//
// next may run again if the server rolled the transaction back because of another one.
// Effects other than writes through the transaction may then repeat. The rules of
// [pgstore.TxFunc] apply: next does not end the transaction.
//
// Each request with a key takes a connection of the guard's store while it runs.
//
// Errors of the options are named together, and wrap semel.ErrInvalidRequest.
func New(guard *pgstore.Guard, next http.Handler, opts *httpidem.Options) (http.Handler, error) {
	if guard == nil {
		return nil, fmt.Errorf("pgidem: New: the guard is nil: %w", semel.ErrInvalidRequest)
	}
	do := func(ctx context.Context, call semel.Call, effect semel.Func) (semel.Outcome, error) {
		return guard.DoTxCall(ctx, call, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
			return effect(context.WithValue(ctx, txKey{}, tx), semel.Claim{})
		})
	}
	return httpidem.NewAtomic(guard.Guard, do, next, opts)
}

type txKey struct{}

// Tx returns the transaction of a request with a key, from the context of that request. It
// is for one goroutine at a time, and ends with the handler. Tx returns nil for a request
// without a key: begin a transaction there, or set Profile.Required.
func Tx(ctx context.Context) pgx.Tx {
	tx, _ := ctx.Value(txKey{}).(pgx.Tx)
	return tx
}
