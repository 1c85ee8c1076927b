package postgres

import (
	"cmp"
	"context"
	"errors"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/semel-dev/semel/broker/postgres"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/store/pgstore"
)

// Advise implements config.Kind.
func (s *Store) Advise(f *config.File, _ *config.Pipeline, path string, err error) *diagnose.Error {
	if said := ofMissing(err); said != nil {
		return said
	}
	if errors.Is(err, pgstore.ErrSchema) {
		return &diagnose.Error{Cause: withoutTables(err), Remedy: "semel migrate up --config " + f.Name + " --store-name " + strings.Split(path, ".")[1], Public: true}
	}
	if said := ofServer(err, s.DSN, path+".dsn"); said != nil {
		return said
	}
	if said := ofBlocker(err); said != nil {
		return said
	}
	if of := refusal(err); of != nil && of.Code == "42501" {
		user, _ := identity(s.DSN)
		return &diagnose.Error{Cause: "user " + user + ": " + of.Message, Remedy: s.grant(of.Message, user), Public: true}
	}
	return nil
}

var (
	ofRelation = regexp.MustCompile(`^permission denied for (table|sequence|schema) (\S+)$`)
	// granted are the privileges that a store and its dead-letter store need.
	granted = map[string]string{
		"meta": "SELECT, INSERT, UPDATE", "migrations": "SELECT", "times": "SELECT, UPDATE", "audit": "SELECT, INSERT",
		"keys": "SELECT, INSERT, UPDATE, DELETE", "parked": "SELECT, INSERT, UPDATE, DELETE",
	}
)

// grant returns the statement that gives a user what it lacks on a table of the store.
func (s *Store) grant(message, user string) string {
	names := s.names()
	schema, to := cmp.Or(names.Schema, pgstore.DefaultSchema), " TO "+pgx.Identifier{user}.Sanitize()
	found := ofRelation.FindStringSubmatch(message)
	switch {
	case found == nil:
		return "grant the privilege" + to
	case found[1] == "schema":
		return "GRANT USAGE ON SCHEMA " + found[2] + to
	case found[1] == "sequence":
		return "GRANT USAGE ON SEQUENCE " + pgx.Identifier{schema, found[2]}.Sanitize() + to
	}
	table := strings.TrimPrefix(found[2], cmp.Or(names.Prefix, pgstore.DefaultPrefix))
	return "GRANT " + cmp.Or(granted[table], granted["keys"]) + " ON " + pgx.Identifier{schema, found[2]}.Sanitize() + to
}

// ofMissing describes a table that was there.
func ofMissing(err error) *diagnose.Error {
	if of, ok := errors.AsType[*pgstore.MissingError](err); ok {
		return &diagnose.Error{Cause: of.Cause(), Remedy: of.Remedy(), Public: true}
	}
	return nil
}

// withoutTables says what is wrong with the tables of a store.
func withoutTables(err error) string {
	if of := refusal(err); of != nil {
		return of.Message
	}
	text, _, _ := strings.Cut(err.Error(), ": run ")
	for _, start := range []string{"pgstore: open: ", "postgres: "} {
		text = text[max(strings.LastIndex(text, start), 0):]
		text = strings.TrimPrefix(text, start)
	}
	return text
}

// Advise implements config.Kind.
func (s *Sink) Advise(f *config.File, _ *config.Pipeline, path string, err error) *diagnose.Error {
	dsn, field := s.DSN, path+".dsn"
	if s.Store.Name != "" {
		store, missing := find(f, s.Store.Name)
		if missing != nil {
			return nil
		}
		dsn, field = store.DSN, "stores."+s.Store.Name+".postgres.dsn"
	}
	if said := ofServer(err, dsn, field); said != nil {
		return said
	}
	if said := ofLock(err); said != nil {
		return said
	}
	of := refusal(err)
	if of == nil {
		return nil
	}
	if said := s.ofOutbox(f, of, dsn); said != nil {
		return said
	}
	return s.ofStatement(of, path, dsn)
}

// ofOutbox explains why the server refused the row of the outbox. It returns nil if that
// row is not the cause.
func (s *Sink) ofOutbox(f *config.File, of *pgconn.PgError, dsn schema.Secret) *diagnose.Error {
	table := s.outboxTable(f)
	name := strings.ReplaceAll(table, `"`, "")
	_, bare, _ := schema.CutLast(name, ".")
	switch {
	case table == "":
	case of.Code == "42P01" && slices.Equal(quoted(of.Message), []string{name}):
		return &diagnose.Error{Cause: "the database has no outbox", Remedy: "semel migrate up --config " + f.Name + " --store-name " + s.Store.Name, Public: true}
	case of.Code == "42501" && of.Message == "permission denied for table "+bare:
		user, _ := identity(dsn)
		return &diagnose.Error{Cause: "user " + user + ": " + of.Message, Remedy: "GRANT INSERT ON " + table + " TO " + user, Public: true}
	}
	return nil
}

// ofStatement explains why the server refused the statement that writes a row. It
// returns nil if the configuration is not the cause.
func (s *Sink) ofStatement(of *pgconn.PgError, path string, dsn schema.Secret) *diagnose.Error {
	written := path + ".table"
	if s.Statement != "" {
		written = path + ".statement"
	}
	names := quoted(of.Message)
	said := &diagnose.Error{Cause: of.Message, Public: s.writes(names)}
	switch of.Code {
	case "42P01":
		if len(names) > 0 {
			said.Cause = "table " + names[0] + " does not exist"
		}
		said.Remedy = "create it, or correct " + written
		if len(names) > 0 && s.Table != "" && names[0] != s.serverName() {
			said.Remedy = "create it, or correct the trigger of " + s.tableName()
		} else if s.Table != "" && strings.ToLower(s.Table) != s.Table {
			said.Remedy += ": its name is exact, but SQL makes names without quotes lower-case"
		}
	case "42703":
		if s.Statement == "" {
			written = path + ".columns"
			if len(names) == 2 {
				said.Cause = "table " + names[1] + " has no column " + names[0]
			}
		}
		said.Remedy = "add it, or correct " + written
	case "42501":
		user, _ := identity(dsn)
		said.Cause = "user " + user + ": " + of.Message
		said.Remedy = s.grant(of.Message, user)
		said.Public = s.Table != ""
	case "42P10":
		said.Cause = "no unique index of table " + s.tableName() + " has the columns (" + s.keyNames() + ")"
		said.Remedy = "CREATE UNIQUE INDEX ON " + s.tableName() + " (" + s.keyNames() + "), or correct " + path + ".key"
		said.Public = true
		if s.Key == nil {
			said.Cause, said.Remedy = of.Message, "correct "+written
		}
	default:
		if of.Code[:2] != "42" && of.Code[:2] != "3F" {
			return nil
		}
		said.Remedy = "correct " + written
	}
	return said
}

// grant returns the statement that gives a user the missing privilege, as far as it is
// known.
func (s *Sink) grant(message, user string) string {
	const remedy = "grant the privilege"
	switch table := cmp.Or(s.tableName(), "…"); {
	case strings.Contains(message, " schema "):
		return remedy + ": GRANT USAGE ON SCHEMA … TO " + user
	case s.Key != nil:
		return remedy + ": GRANT SELECT, INSERT, UPDATE ON " + table + " TO " + user
	case s.Table != "":
		return remedy + ": GRANT INSERT ON " + table + " TO " + user
	}
	return remedy
}

var inQuotes = regexp.MustCompile(`"([^"]+)"`)

// quoted returns the names in a message of the server.
func quoted(message string) (names []string) {
	for _, found := range inQuotes.FindAllStringSubmatch(message, -1) {
		names = append(names, found[1])
	}
	return names
}

// writes reports whether the configuration has all these names. A name that a
// trigger made may be a part of a message.
func (s *Sink) writes(names []string) bool {
	have := s.Statement + " " + s.Table + " " + strings.Join(columnNames(s.Columns), " ")
	for _, name := range names {
		if !strings.Contains(have, name) {
			return false
		}
	}
	return len(names) > 0
}

func refusal(err error) *pgconn.PgError {
	of, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || len(of.Code) != 5 {
		return nil
	}
	return of
}

// identity returns the user and the database of an address.
func identity(dsn schema.Secret) (user, database string) {
	parsed, err := pgconn.ParseConfig(dsn.Reveal())
	if err != nil {
		return "", ""
	}
	return parsed.User, cmp.Or(parsed.Database, parsed.User)
}

// ofBlocker describes a statement that waited for a session that is known.
func ofBlocker(err error) *diagnose.Error {
	if behind, ok := errors.AsType[*postgres.LockError](err); ok && behind.By != "" {
		return &diagnose.Error{Cause: "a statement waited for " + behind.By, Public: true}
	}
	return nil
}

// ofLock describes a statement that waited too long.
func ofLock(err error) *diagnose.Error {
	if said := ofBlocker(err); said != nil {
		return said
	}
	of := refusal(err)
	if of == nil {
		return nil
	}
	const look = "SELECT pid, application_name, pg_blocking_pids(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
	switch of.Code {
	case "55P03":
		return &diagnose.Error{Cause: "a statement waited too long for a lock: " + of.Message, Remedy: "see who holds it: " + look, Public: true}
	case "57014":
		return &diagnose.Error{Cause: of.Message, Remedy: "raise statement_timeout, or see who holds a lock: " + look, Public: true}
	}
	return nil
}

// ofServer describes a server that refuses the connection, or that cannot work now.
// field is the address in the configuration.
func ofServer(err error, dsn schema.Secret, field string) *diagnose.Error {
	if connecting, ok := errors.AsType[*pgconn.ConnectError](err); ok && errors.Is(err, context.DeadlineExceeded) {
		at := net.JoinHostPort(connecting.Config.Host, strconv.Itoa(int(connecting.Config.Port)))
		return &diagnose.Error{Cause: "no answer from " + at, Remedy: "is the server up, can this machine reach it, and is it the right kind of server? Correct " + field, Public: true}
	}
	if errors.Is(err, postgres.ErrSilent) || strings.Contains(err.Error(), "no answer within ") { // the latter is the store's own limit
		return &diagnose.Error{Cause: "the server does not answer", Remedy: "is it stopped or overloaded, and can this machine still reach it? Correct " + field, Public: true}
	}
	if said := diagnose.Certificate(err, "sslrootcert of "+field, field); said != nil {
		return said
	}
	if strings.Contains(err.Error(), "server refused TLS connection") {
		return &diagnose.Error{Cause: "the server has no TLS", Remedy: "switch it on there (ssl = on), or write sslmode=disable in " + field + " if the network is safe", Public: true}
	}
	of := refusal(err)
	if of == nil {
		return nil
	}
	user, database := identity(dsn)
	said := &diagnose.Error{Cause: of.Message, Public: true}
	switch of.Code {
	case "28P01":
		said.Cause, said.Remedy = "password refused for user "+user, "correct "+field
	case "28000":
		if strings.HasSuffix(of.Message, "no encryption") {
			said.Remedy = "write sslmode=require in " + field + ", or let " + user + " connect without TLS (pg_hba.conf)"
			break
		}
		said.Remedy = "create the role or let it connect (pg_hba.conf), or correct " + field
	case "3D000":
		said.Cause, said.Remedy = "database "+database+" does not exist", "create it: createdb "+database+", or correct "+field
	case "53300":
		said.Remedy = "lower pool_max_conns in " + field + ", or raise max_connections of the server"
	case "53100":
		said.Cause, said.Remedy = "the server has no disk space: "+of.Message, "free or add space on its disk"
	case "57P01", "57P02":
		said.Cause, said.Remedy = "the server ended the connection: "+of.Message, "it stops or restarts, or a person ended the session: wait for it"
	case "57P03":
		said.Remedy = "the server is starting, stopping or recovering: wait for it"
	case "25006":
		said.Cause, said.Remedy = "the server is read-only: "+of.Message, "name the primary in "+field+", or add target_session_attrs=read-write"
	case "42501":
		if !strings.Contains(of.Message, "database") {
			return nil
		}
		said.Remedy = "GRANT CONNECT ON DATABASE " + database + " TO " + user
	default:
		return nil
	}
	return said
}
