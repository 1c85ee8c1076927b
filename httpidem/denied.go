package httpidem

import (
	"errors"
	"net/http"
	"time"
)

// Denied is an error of [Options.Scope] that chooses the answer. Every other error is
// answered with 401.
type Denied struct {
	// Status is 401 if it is not known who the caller is, 403 if the caller may not send
	// the request, and 503 if neither could be found out. Others count as 401.
	Status int
	// Detail is a sentence for the client. It must have no credentials. Defaults to a
	// sentence for the status.
	Detail string
	// Challenge is the header WWW-Authenticate of the answer. Defaults to none.
	Challenge string
	// Err is the cause, for logs. The client does not see it. It may be nil.
	Err error
}

// Error implements error.
func (d *Denied) Error() string {
	text := "httpidem: the caller is refused"
	if d.Detail != "" {
		text += ": " + d.Detail
	}
	if d.Err != nil {
		text += ": " + d.Err.Error()
	}
	return text
}

// Unwrap returns the cause.
func (d *Denied) Unwrap() error { return d.Err }

// deny answers a request whose caller is not known, or may not send it.
func deny(w http.ResponseWriter, err error, p *Profile) {
	var d *Denied
	if !errors.As(err, &d) {
		d = &Denied{}
	}
	if d.Challenge != "" {
		w.Header().Set("WWW-Authenticate", d.Challenge)
	}
	f := &refusal{problem: ScopeMissing, detail: "Requests with a key need credentials."}
	switch d.Status {
	case http.StatusForbidden:
		f = &refusal{problem: ScopeDenied, detail: "Nothing has run."}
	case http.StatusServiceUnavailable:
		f = &refusal{problem: ScopeUnavailable, detail: "Nothing has run. Repeat the request.", after: time.Second}
	}
	if d.Detail != "" {
		f.detail = d.Detail
	}
	f.write(w, p)
}
