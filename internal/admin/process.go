package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
)

// Process is a running process as its admin server and its sockets show it. Its functions
// are called concurrently.
type Process struct {
	// Ready asks each part of the process whether it can work.
	Ready func(ctx context.Context) []Readiness
	// Status asks what the process does now.
	Status func(ctx context.Context) *Status
	// Metrics answers with the metrics.
	Metrics http.Handler
	// Store returns a store that the process has open.
	Store func(name string) (semel.Store, error)
	// Parked opens the parked messages of a pipeline, and reports whether there may be any.
	// The caller closes them.
	Parked func(ctx context.Context, pipeline string) (pipeline.DeadLetters, bool, error)
	// Journal is what the process remembers.
	Journal *Journal
	// Redact removes secrets from the texts of errors.
	Redact func(text string) string
	// Rates returns how many messages a pipeline settled per second in each ten seconds of
	// the last hour, the oldest first.
	Rates func(pipeline string) []float64
	// Tries limits how fast the credentials of admin.auth can be guessed.
	Tries Tries
	// Page is the page for people, or nil. It decides by itself who may see what.
	Page http.Handler
}

// Readiness is whether a part of a process can work.
type Readiness struct {
	Name string
	// Why is empty if it can.
	Why string
}

func answerText(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text)) // a probe that disconnected needs no answer
}

func answerJSON(w http.ResponseWriter, value any) {
	text, err := json.Marshal(value)
	if err != nil {
		answerText(w, http.StatusInternalServerError, err.Error()+"\n")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(append(text, '\n')) // a client that disconnected needs no answer
}

// probeFor limits the time for the answer to a probe or a request for the status.
const probeFor = 5 * time.Second

// readyz checks every part of the process.
func (p *Process) readyz(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), probeFor)
	defer cancel()
	var text strings.Builder
	status := http.StatusOK
	for _, part := range p.Ready(ctx) {
		if part.Why == "" {
			fmt.Fprintf(&text, "%s: ready\n", part.Name)
			continue
		}
		status = http.StatusServiceUnavailable
		fmt.Fprintf(&text, "%s: not ready: %s\n", part.Name, part.Why)
	}
	answerText(w, status, text.String())
}

// statusz answers with the status.
func (p *Process) statusz(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), probeFor)
	defer cancel()
	answerJSON(w, p.Status(ctx))
}

// journalz answers with the journal of one key: GET /journal?scope=SCOPE&id=ID, where the
// ID is a string.
func (p *Process) journalz(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	id := query.Get("id")
	if id == "" {
		answerText(w, http.StatusBadRequest, "the id is missing: write /journal?scope=SCOPE&id=ID\n")
		return
	}
	found := p.Journal.Of(semel.Key{Scope: query.Get("scope"), ID: string(key.AppendString(nil, id))})
	answerJSON(w, &found)
}
