package wiring

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
)

// ExaminePipeline looks at the ends of a pipeline: whether its source has
// something to read, its sink can be reached and takes what is written to it, and
// messages can be put aside. Nothing is read from the source or written to the
// sink. It blocks until servers have answered, for each of them at most until ctx
// ends.
func ExaminePipeline(ctx context.Context, f *config.File, p *config.Pipeline) Report {
	r := Report{Pipeline: p}
	if HasKafka(p) {
		r = ExamineKafka(ctx, f, p)
	}
	var errs []error
	look := func(what string, look func() error) {
		if err := look(); err != nil {
			errs = append(errs, f.RedactError(fmt.Errorf("%s: %w", what, err)))
		}
	}
	switch spec := p.Source.(type) {
	case *config.FileSource:
		r.filesToRead(spec)
		r.directory("source.file.state", spec.State, "positions cannot be kept")
	case *config.HTTPSource:
		r.listening(spec)
	}
	switch spec := p.Sink.(type) {
	case *config.FileSink:
		if r.isFile("sink.file.path", spec.Path, "nothing can be written") {
			r.directory("sink.file.path", filepath.Dir(spec.Path), "nothing can be written")
		}
	case *config.WebhookSink:
		look("sink", func() error { return reach(ctx, spec) })
		if len(errs) == 0 {
			r.note(semel.Fine, "sink.webhook.url", "the target takes connections", "", "")
		}
	case *config.PostgresSink:
		look("sink", func() error { return r.rows(ctx, f, spec) })
	}
	switch {
	case p.Parked.Path != "":
		r.directory("parked.path", p.Parked.Path, "a message that fails for good holds up the pipeline")
	case p.Parked.Store.Name != "":
		look("parked", func() error { return r.table(ctx, f, p) })
	}
	r.Err = errors.Join(append(errs, r.Err)...)
	return r
}

// filesToRead looks for files that can be read.
func (r *Report) filesToRead(spec *config.FileSource) {
	for _, pattern := range spec.Paths {
		names, _ := filepath.Glob(pattern) // that it is a pattern was checked
		names = slices.DeleteFunc(names, func(name string) bool {
			info, err := os.Stat(name)
			return err == nil && !info.Mode().IsRegular() && name != pattern // the source passes over it
		})
		unread := 0
		for _, name := range names {
			if !r.isFile("source.file.paths", name, "the pipeline does not start") {
				unread++
				continue
			}
			file, err := os.Open(name)
			if err != nil {
				unread++
				r.note(semel.Broken, "source.file.paths", err.Error(), "its lines are not read", "let the program read it")
				continue
			}
			_ = file.Close() // nothing was done with it
		}
		switch {
		case len(names) == 0 && spec.Follow:
			r.note(semel.Notice, "source.file.paths", pattern+" matches no file yet", "", "none if one is to come")
		case len(names) == 0:
			r.note(semel.Broken, "source.file.paths", pattern+" matches no file", "the pipeline does not start", "the right path, or follow: true")
		case unread == 0:
			r.note(semel.Fine, "source.file.paths", fmt.Sprintf("%s: %d to read", pattern, len(names)), "", "")
		}
	}
}

// isFile finds fault with what is there and no regular file.
func (r *Report) isFile(subject, path, cost string) bool {
	info, err := os.Stat(path)
	if err != nil || info.Mode().IsRegular() {
		return true
	}
	r.note(semel.Broken, subject, path+" is not a regular file", cost, "another path")
	return false
}

// directory looks whether files can be made in a directory, or where it is to be
// made. What it makes for that is gone when it returns.
func (r *Report) directory(subject, dir, cost string) {
	at := dir
	for {
		info, err := os.Stat(at)
		if err == nil && !info.IsDir() {
			r.note(semel.Broken, subject, at+" is not a directory", cost, "another path")
			return
		}
		if parent := filepath.Dir(at); err != nil && errors.Is(err, os.ErrNotExist) && parent != at {
			at = parent
			continue
		}
		break
	}
	file, err := os.CreateTemp(at, ".semel-doctor-*")
	if err == nil {
		err = errors.Join(file.Close(), os.Remove(file.Name()))
	}
	if err != nil {
		r.note(semel.Broken, subject, err.Error(), cost, "let the program write there, or name another path")
		return
	}
	r.note(semel.Fine, subject, dir+" can be written", "", "")
}

// listening looks whether the address is free.
func (r *Report) listening(spec *config.HTTPSource) {
	listener, err := net.Listen("tcp", spec.Listen)
	if err != nil {
		r.note(semel.Notice, "source.http.listen", err.Error(), "", "none if the pipeline runs; else another address")
		return
	}
	_ = listener.Close() // nobody has come
	r.note(semel.Fine, "source.http.listen", spec.Listen+" is free", "", "")
}

// reach connects to a target, and sends nothing.
func reach(ctx context.Context, spec *config.WebhookSink) error {
	u, err := url.Parse(spec.URL.Reveal())
	if err != nil {
		return fmt.Errorf("the address cannot be read: %w", semel.ErrInvalidRequest)
	}
	port := u.Port()
	if port == "" {
		port = u.Scheme
	}
	ctx, cancel := context.WithTimeout(ctx, min(spec.Timeout, 10*time.Second))
	defer cancel()
	address := net.JoinHostPort(u.Hostname(), port)
	var conn io.Closer
	if u.Scheme == "https" {
		c, tlsErr := clientTLS(spec.TLS)
		if tlsErr != nil {
			return tlsErr
		}
		conn, err = (&tls.Dialer{Config: c}).DialContext(ctx, "tcp", address)
	} else {
		conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", address)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", semel.ErrStoreUnavailable, err)
	}
	return conn.Close()
}

// rows has the server plan what a sink writes, which checks tables, columns,
// the unique key of an upsert and the right to write, and executes nothing.
func (r *Report) rows(ctx context.Context, f *config.File, spec *config.PostgresSink) (err error) {
	dsn := spec.DSN
	if s, ok := f.Store(spec.Store.Name); ok {
		dsn = s.Spec.(*config.Postgres).DSN
	}
	conn, err := pgx.Connect(ctx, dsn.Reveal())
	if err != nil {
		return fmt.Errorf("%w: %w", semel.ErrStoreUnavailable, err)
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	subject := "sink.postgres.table"
	switch {
	case spec.Statement != "":
		subject = "sink.postgres.statement"
		_, err = conn.Prepare(ctx, "", spec.Statement)
	case spec.Upsert != nil:
		subject = "sink.postgres.upsert"
		_, err = conn.Exec(ctx, plan(spec.Upsert.Table, spec.Upsert.Columns, spec.Upsert.Key), pgx.QueryExecModeExec)
	default:
		_, err = conn.Exec(ctx, plan(spec.Table, spec.Columns, nil), pgx.QueryExecModeExec)
	}
	if err != nil && conn.IsClosed() {
		return fmt.Errorf("%w: %w", semel.ErrStoreUnavailable, err)
	}
	if err != nil {
		r.note(semel.Broken, subject, f.Redact(err.Error()), "no row is written", "what it says")
		return nil
	}
	r.note(semel.Fine, subject, "the server plans what is written", "", "")
	return nil
}

// plan asks how a row would be written. With key there must be a unique index.
func plan(table string, columns []config.Column, key []string) string {
	names, values := make([]string, len(columns)), make([]string, len(columns))
	for i, c := range columns {
		names[i], values[i] = pgx.Identifier{c.Name}.Sanitize(), "DEFAULT"
	}
	text := fmt.Sprintf("EXPLAIN INSERT INTO %s (%s) VALUES (%s)", pgx.Identifier(strings.Split(table, ".")).Sanitize(), strings.Join(names, ", "), strings.Join(values, ", "))
	if len(key) == 0 {
		return text
	}
	unique := make([]string, len(key))
	for i, name := range key {
		unique[i] = pgx.Identifier{name}.Sanitize()
	}
	return text + " ON CONFLICT (" + strings.Join(unique, ", ") + ") DO NOTHING"
}

// table looks at the table of what is put aside.
func (r *Report) table(ctx context.Context, f *config.File, p *config.Pipeline) error {
	lot, err := OpenLot(ctx, f, p)
	if semel.Classify(err) == semel.ClassPermanent {
		r.note(semel.Broken, "parked.store", f.Redact(err.Error()), "a message that fails for good holds up the pipeline", "semel migrate up --config "+f.Name+" --store-name "+p.Parked.Store.Name)
		return nil
	}
	if err != nil {
		return err
	}
	r.note(semel.Fine, "parked.store", "its table is there", "", "")
	return lot.Close()
}
