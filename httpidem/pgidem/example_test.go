package pgidem_test

import (
	"context"
	"fmt"
	"log"
	"net/http"

	"github.com/semel-dev/semel/httpidem"
	"github.com/semel-dev/semel/httpidem/caller"
	"github.com/semel-dev/semel/httpidem/pgidem"
	"github.com/semel-dev/semel/store/pgstore"
)

func ExampleNew() {
	ctx := context.Background()
	store, err := pgstore.Connect(ctx, "postgres://shop@localhost/shop", nil)
	if err != nil {
		log.Print(err)
		return
	}
	defer store.Close()
	guard, err := pgstore.NewGuard(store, nil)
	if err != nil {
		log.Print(err)
		return
	}
	charge := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Key, account and response commit together.
		_, err := pgidem.Tx(r.Context()).Exec(r.Context(), "UPDATE accounts SET cents = cents - 1250 WHERE id = 'alice'")
		if err != nil {
			http.Error(w, "the account could not be charged", http.StatusInternalServerError) // rolls back
			return
		}
		fmt.Fprintln(w, "receipt 1")
	})
	customer, err := caller.Header("X-Customer") // set by a server in front
	if err != nil {
		log.Print(err)
		return
	}
	handler, err := pgidem.New(guard, charge, &httpidem.Options{Scope: customer, Profile: httpidem.Profile{Required: true}})
	if err != nil {
		log.Print(err)
		return
	}
	log.Fatal(http.ListenAndServe("127.0.0.1:8080", handler))
}
