package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/remotestore"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/internal/wiring"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
)

// listenInStore answers questions through a socket in the directory of a store, until
// the returned function is called. Without the socket the pipelines work as well.
func (d *daemon) listenInStore(store, dir string) (closing func() error) {
	listener, err := remotestore.Listen(dir)
	if err != nil {
		d.log.Warn("no socket in the store's directory: semel keys and semel explain cannot ask this process; name its admin server with --admin", "store", store, "error", err)
		return func() error { return nil }
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+StatusPath, d.statusz)
	mux.HandleFunc("GET "+remotestore.JournalPath, d.journalz)
	mux.Handle("POST "+remotestore.Path, &remotestore.Host{
		Store: func(name string) (semel.Store, error) {
			if name != "" {
				return d.opened(name)
			}
			// A stack above the store must forget the keys that an operator removes.
			if stack, ok := d.file.Above(store); ok {
				if found, err := d.opened(stack.Name); err == nil {
					return found, nil
				}
			}
			return d.opened(store)
		},
		Parked: d.openParked, Journal: d.journal.of, Redact: d.file.Redact, Changes: true,
	})
	server := remotestore.NewServer(mux)
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			d.log.Error("the socket in the store's directory ended", "store", store, "error", err)
		}
	})
	return func() error {
		err := server.Close()
		serving.Wait()
		return err
	}
}

// handleQuestions lets the clients of the admin server ask. They read keys and messages,
// so they must have the credentials of admin.auth.
func (d *daemon) handleQuestions(mux *http.ServeMux) {
	if d.file.Admin.Auth == nil {
		refuse := func(w http.ResponseWriter, _ *http.Request) {
			answer(w, http.StatusForbidden, "the process shows keys only to clients with credentials, and admin.auth is not set in its configuration\n")
		}
		mux.HandleFunc(remotestore.Path, refuse)
		mux.HandleFunc(remotestore.JournalPath, refuse)
		return
	}
	mux.HandleFunc("GET "+remotestore.JournalPath, d.journalz)
	mux.Handle("POST "+remotestore.Path, &remotestore.Host{Store: d.opened, Parked: d.openParked, Journal: d.journal.of, Redact: d.file.Redact})
}

// opened returns a store that a pipeline has open.
func (d *daemon) opened(name string) (semel.Store, error) {
	if store, ok := d.stores.Opened(name); ok {
		return store, nil
	}
	if _, ok := d.file.Store(name); !ok {
		return nil, fmt.Errorf("the running process has no store %q: %s: %w", name, schema.OneOf(name, d.file.StoreNames()), semel.ErrInvalidRequest)
	}
	return nil, fmt.Errorf("the running process does not have the store %s open: %w", name, semel.ErrStoreUnavailable)
}

// openParked opens the parked messages of a pipeline.
func (d *daemon) openParked(ctx context.Context, name string) (pipeline.DeadLetters, bool, error) {
	spec, ok := d.file.Pipeline(name)
	if !ok {
		return nil, false, fmt.Errorf("the running process has no pipeline %q: %s: %w", name, schema.OneOf(name, d.file.PipelineNames()), semel.ErrInvalidRequest)
	}
	return wiring.ExistingDeadLetters(ctx, d.file, spec)
}

// journalz answers with the journal of one key: GET /journal?scope=SCOPE&id=ID, where the
// ID is a string.
func (d *daemon) journalz(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	id := query.Get("id")
	if id == "" {
		answer(w, http.StatusBadRequest, "the id is missing: write /journal?scope=SCOPE&id=ID\n")
		return
	}
	found := d.journal.of(semel.Key{Scope: query.Get("scope"), ID: string(key.AppendString(nil, id))})
	text, err := json.Marshal(&found)
	if err != nil {
		answer(w, http.StatusInternalServerError, err.Error()+"\n")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(append(text, '\n')) // a client that disconnected needs no answer
}
