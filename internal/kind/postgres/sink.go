// Package postgres is the kind of store that keeps keys in PostgreSQL, and the
// kind of sink that writes rows.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/postgres"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/pgstore"
)

// Sink writes rows. Statement is set, or Table, Outbox or both of them.
type Sink struct {
	config.SinkBase
	// Store is a postgres store whose database is used. DSN is the address of
	// another database. Exactly one of them is set.
	Store schema.Reference
	DSN   schema.Secret
	// Statement is executed with Args for each message.
	Statement string
	Args      []string
	// Table gets a row of Columns for each message. With Key, it keeps one row for
	// each value of these columns; see postgres.Options.
	Table   string
	Columns []postgres.Column
	Key     []string
	Version string
	// Outbox is nil if no row is written to the outbox of Store.
	Outbox *OutboxRow
}

// OutboxRow is the row that a message becomes in the outbox.
type OutboxRow struct{ Aggregate, Topic, Payload string }

// NewSink returns an empty Sink.
func NewSink() config.Sink { return &Sink{} }

// Kind implements config.Kind.
func (*Sink) Kind() string { return "postgres" }

// Fields implements config.Kind.
func (s *Sink) Fields() schema.Mapping {
	args := schema.Form{Scalar: schema.ScalarValue}
	return schema.Mapping{
		Doc: "Rows of a table, of the outbox or of both, or a statement for each message. In the database of the pipeline's store, keys and rows are one transaction.",
		Fields: []schema.Field{
			schema.StoreField("store", &s.Store, "Store of the kind `postgres`, whose database gets the rows. If it is the pipeline's store, keys and rows are one transaction."),
			dsnField(&s.DSN),
			schema.TextField("statement", &s.Statement, "Statement that runs for each message. `$1`, `$2`… are the `args`."),
			schema.ListField("args", args, func(v schema.Value) {
				v.List(func(element schema.Value) {
					var from string
					columnSource(element, &from)
					s.Args = append(s.Args, from)
				})
			}, "The values of `$1`, `$2` and so on."),
			tableField(&s.Table),
			columnsField(&s.Columns),
			schema.ListField("key", schema.Form{Scalar: schema.ScalarText}, func(v schema.Value) {
				v.List(func(element schema.Value) {
					var name string
					if columnName(element, &name); name != "" {
						s.Key = append(s.Key, name)
					}
				})
			}, "Columns that are unique together. The table keeps one row for each of their values: a message replaces the row that is there.").Means("none: each message adds a row"),
			schema.Field{Name: "version", Doc: "Column that must grow for a row to be replaced. An older message changes nothing.", Form: schema.Form{Scalar: schema.ScalarText}, Read: func(v schema.Value) { columnName(v, &s.Version) }}.Means("none: the last delivery wins"),
			schema.PartField("outbox", func() schema.Mapping {
				s.Outbox = &OutboxRow{}
				return s.Outbox.fields()
			}, "Also write an event to the outbox in the database of `store`, in the same transaction. `table` may be left out.").Means("off"),
		},
		OneOf: [][]string{{"store", "dsn"}},
		Check: func(v schema.Value, there schema.Members) {
			args, hasArgs := there["args"]
			columns, hasColumns := there["columns"]
			_, hasTable := there["table"]
			keys, hasKey := there["key"]
			version, hasVersion := there["version"]
			event, hasOutbox := there["outbox"]
			_, hasStatement := there["statement"]
			switch {
			case hasStatement && hasTable:
				there["table"].Wrong("statement and table exclude each other: keep one")
			case hasStatement && hasOutbox:
				event.Wrong("a statement writes to the outbox itself, with semel_outbox_write: leave one of them out")
			case !hasStatement && !hasTable && !hasOutbox:
				v.Wrong("one of statement, table, outbox is missing")
			case hasOutbox && s.Store.Name == "" && s.DSN.Reveal() != "":
				event.Wrong("it needs store, the store whose database has the outbox: write that instead of dsn")
			case hasArgs && s.Statement == "":
				args.Wrong("it is for a statement: leave it out")
			case hasColumns && !hasTable:
				columns.Wrong("it is for a table: leave it out")
			case hasKey && !hasTable:
				keys.Wrong("it is for a table: leave it out")
			case hasTable && !hasColumns:
				v.Wrong("columns is missing")
			case hasVersion && !hasKey:
				version.Wrong("it needs a key: write the columns that are unique together, as in key: [id]")
			}
			names := columnNames(s.Columns)
			for _, name := range s.Key {
				if !slices.Contains(names, name) && names != nil {
					keys.Wrong("%s is not among the columns: %s", name, schema.OneOf(name, names))
				}
			}
			if s.Version != "" && !slices.Contains(names, s.Version) && names != nil {
				version.Wrong("%s is not among the columns: %s", s.Version, schema.OneOf(s.Version, names))
			}
		},
	}
}

func columnNames(columns []postgres.Column) []string {
	var names []string
	for _, c := range columns {
		names = append(names, c.Name)
	}
	return names
}

// tableField is a table name, with or without a schema.
func tableField(target *string) schema.Field {
	return schema.Field{Name: "table", Doc: "Table that gets a row for each message, `payments` or `app.payments`. Names are exact, as if quoted in SQL: `Order` is the table `\"Order\"`. A name with a dot is in double quotes.", Form: schema.Form{Scalar: schema.ScalarText}, Read: func(v schema.Value) {
		schema.Quantity(v, target, "a table name", func(text string) (string, error) {
			_, err := postgres.ParseTable(text)
			return text, err
		})
	}}
}

// columnName reads the exact name of a column.
func columnName(v schema.Value, target *string) {
	schema.Quantity(v, target, "a column name", func(text string) (string, error) {
		return text, postgres.CheckName(text)
	})
}

// sqlName returns a table or column as people write it in SQL.
func sqlName(name pgx.Identifier) string {
	parts := slices.Clone(name)
	for i, part := range parts {
		if !schema.IsIdentifier(part, len(part)) {
			parts[i] = pgx.Identifier{part}.Sanitize()
		}
	}
	return strings.Join(parts, ".")
}

// tableName returns the sink's table as people write it in SQL.
func (s *Sink) tableName() string {
	name, err := postgres.ParseTable(s.Table)
	if err != nil {
		return s.Table // the parser has reported it
	}
	return sqlName(name)
}

// serverName returns the sink's table as messages of the server have it.
func (s *Sink) serverName() string {
	name, err := postgres.ParseTable(s.Table)
	if err != nil {
		return s.Table
	}
	return strings.Join(name, ".")
}

// keyNames returns the columns of Key as people write them in SQL.
func (s *Sink) keyNames() string {
	names := make([]string, len(s.Key))
	for i, name := range s.Key {
		names[i] = sqlName(pgx.Identifier{name})
	}
	return strings.Join(names, ", ")
}

// columnsField says where the column values come from.
func columnsField(target *[]postgres.Column) schema.Field {
	return schema.Field{Name: "columns", Doc: "Columns of the table, and where their values come from.", Form: schema.Form{Named: &schema.Form{Scalar: schema.ScalarValue}}, Read: func(v schema.Value) {
		entries, ok := v.Entries()
		if ok && len(entries) == 0 {
			v.Wrong("it has no column: write { column: .member }")
		}
		for _, e := range entries {
			if err := postgres.CheckName(e.Name); err != nil {
				v.WrongAt(e.At, "%s: this is not a column name: %v", v.Path, err)
				continue
			}
			c := postgres.Column{Name: e.Name}
			columnSource(v.Value(e.Value, schema.Within(v.Path, e.Name)), &c.From)
			*target = append(*target, c)
		}
	}}
}

func (r *OutboxRow) fields() schema.Mapping {
	value := func(name string, target *string, doc string) schema.Field {
		return schema.Field{Name: name, Doc: doc, Form: schema.Form{Scalar: schema.ScalarValue}, Read: func(v schema.Value) { columnSource(v, target) }}
	}
	return schema.Mapping{Fields: []schema.Field{
		value("aggregate", &r.Aggregate, "Where the event has its aggregate, as in `columns`. Events of one aggregate keep their order. A message without it fails permanently.").Means("none: events have no order"),
		schema.TextField("topic", &r.Topic, "Topic of the event.").Means("none"),
		value("payload", &r.Payload, "Where the event has its payload, as in `columns`.").Or("body"),
	}}
}

// columnSource reads the part of a message that a value comes from.
func columnSource(v schema.Value, target *string) {
	schema.Quantity(v, target, "a text", func(text string) (string, error) {
		words := []string{"record-key", "property:message-id", "body", "key", "scope", "time", "attempt", "token", "source", "partition", "offset"}
		if name, ok := strings.CutPrefix(text, "header:"); ok && name != "" || slices.Contains(words, text) {
			return text, nil
		}
		if strings.HasPrefix(text, ".") {
			if _, err := key.ParsePath(text); err != nil {
				return "", config.RuleProblem(err)
			}
			return text, nil
		}
		return "", fmt.Errorf("write a path such as .amount, header:NAME, or %s", strings.Join(words, ", "))
	})
}

// About implements config.Sink.
func (s *Sink) About() config.SinkAbout {
	name := "postgres statement"
	switch {
	case s.Key != nil:
		name = "postgres upsert into " + s.tableName()
	case s.Table != "":
		name = "postgres table " + s.tableName()
	}
	if s.Outbox != nil {
		name = strings.TrimPrefix(strings.TrimPrefix(name, "postgres statement")+" and outbox of "+s.Store.Name, " and ")
	}
	return config.SinkAbout{Name: name, Store: s.Store, Handed: "which a statement gets as key, attempt and token"}
}

// Check implements config.Sink.
func (s *Sink) Check(c *config.Checker, p *config.Pipeline) {
	if source, ok := p.Source.(*Outbox); ok && s.Outbox != nil && source.Store.Name == s.Store.Name {
		const field = ".sink.postgres.outbox"
		c.Report(c.Places["pipelines."+p.Name+field], "pipelines."+p.Name+field, "the pipeline reads the same outbox, so it would deliver its own rows again and again: write to another one")
	}
}

// Lint implements config.Sink.
func (s *Sink) Lint(l *config.Linter) {
	p := l.Pipeline
	if from := s.Outbox; from != nil && from.Aggregate != "" && from.Aggregate != "record-key" && p.Order != "partition" {
		l.Notice(l.At("sink.postgres.outbox.aggregate"), from.Aggregate, "messages with different record keys are processed concurrently, so events of one aggregate may be written in another order than their messages", "write order: partition if their order matters, or aggregate: record-key")
	}
	if s.Outbox != nil {
		l.Value("sink.postgres.outbox.aggregate", s.Outbox.Aggregate, "no message has an aggregate, and every one is parked")
		l.Value("sink.postgres.outbox.payload", s.Outbox.Payload, "every event is empty")
		s.lintEvents(l)
	}
	for _, column := range s.Columns {
		l.Value("sink.postgres.columns", column.From, "the column "+column.Name+" is always null")
	}
	for _, from := range s.Args {
		l.Value("sink.postgres.args", from, "the argument is always null")
	}
	decider := l.File.Decider(p.Store.Name)
	if decider == nil || l.Mode == config.SameTransaction || p.Observe {
		return
	}
	spec, ok := decider.Spec.(*Store)
	if !ok {
		return
	}
	const cost = "keys and rows are two transactions, and a crash between them repeats the row"
	switch {
	case s.Store.Name == decider.Name:
		l.Add(doctor.Warning, config.Repeat, l.At("store"), p.Store.Name+", a stack above "+decider.Name, cost, "write store: "+decider.Name+", so that keys and rows are one transaction")
	case s.DSN.Reveal() != "" && s.DSN.Reveal() == spec.DSN.Reveal():
		l.Add(doctor.Warning, config.Repeat, l.At("sink.postgres.dsn"), "the database of store "+decider.Name, cost, "write store: "+decider.Name+" instead of dsn, so that keys and rows are one transaction")
	}
}

// lintEvents looks for other pipelines whose events may have the same keys.
func (s *Sink) lintEvents(l *config.Linter) {
	for _, other := range l.File.Pipelines {
		source, relays := other.Source.(*Outbox)
		if relays && source.Store.Name == s.Store.Name && other.Key.Rule != nil && strings.Contains(other.Key.Rule.String(), "header:semel-pipeline") {
			return
		}
	}
	for _, other := range l.File.Pipelines {
		sink, ok := other.Sink.(*Sink)
		if !ok || other == l.Pipeline || sink.Outbox == nil || sink.Store.Name != s.Store.Name {
			continue
		}
		l.Add(doctor.Warning, config.Loss, l.At("sink.postgres.outbox"), "the outbox of "+s.Store.Name+", to which "+other.Name+" writes too", "if both get one message, their events have the same key, and a target or consumer that knows it drops the second",
			`let the relay tell them apart: key: { id: { all: ["header:semel-pipeline", "header:semel-key"] } }`)
		return
	}
}

// database returns the address of the database, which may belong to a store.
func (s *Sink) database(f *config.File) (schema.Secret, error) {
	if s.Store.Name == "" {
		return s.DSN, nil
	}
	store, err := find(f, s.Store.Name)
	if err != nil {
		return schema.Secret{}, err
	}
	return store.DSN, nil
}

// find returns the postgres store with this name.
func find(f *config.File, name string) (*Store, error) {
	s, ok := f.Store(name)
	if !ok {
		return nil, fmt.Errorf("there is no store %q: %w", name, semel.ErrInvalidRequest)
	}
	store, ok := s.Spec.(*Store)
	if !ok {
		return nil, fmt.Errorf("store %s is not of the kind postgres: %w", name, semel.ErrInvalidRequest)
	}
	return store, nil
}

// Open implements config.Sink.
func (s *Sink) Open(ctx context.Context, env *config.Env) (pipeline.Sink, error) {
	dsn, err := s.database(env.File)
	if err != nil {
		return nil, err
	}
	opts, err := s.options(env)
	if err != nil {
		return nil, err
	}
	return config.AsSink(postgres.Open(ctx, dsn.Reveal(), opts))
}

// OpenSession implements config.SessionSink: keys and rows are one transaction.
func (s *Sink) OpenSession(_ context.Context, env *config.Env) (pipeline.Session, pipeline.Source, error) {
	keys, ok := env.Keys.(*pgstore.Store)
	if !ok {
		return nil, nil, fmt.Errorf("store %s is not of the kind postgres: %w", env.Pipeline.Store.Name, semel.ErrInvalidRequest)
	}
	policy := env.Guard()
	guard, err := pgstore.NewGuard(keys, &policy)
	if err != nil {
		return nil, nil, err
	}
	opts, err := s.options(env)
	if err != nil {
		return nil, nil, err
	}
	opts.FilterMap = env.Pipeline.FilterMap
	session, err := postgres.NewSession(guard, opts)
	if err != nil {
		return nil, nil, fmt.Errorf("sink: %w", err)
	}
	return session, nil, nil
}

func (s *Sink) options(env *config.Env) (*postgres.Options, error) {
	o := &postgres.Options{Statement: s.Statement, Args: s.Args, Table: s.Table, Columns: s.Columns, Key: s.Key, Version: s.Version}
	if s.Outbox != nil {
		store, err := find(env.File, s.Store.Name)
		if err != nil {
			return nil, err
		}
		o.Outbox = &postgres.OutboxRow{Names: store.names(), Pipeline: env.Pipeline.Name, Topic: s.Outbox.Topic, Aggregate: s.Outbox.Aggregate, Payload: s.Outbox.Payload}
	}
	return o, nil
}

// outboxTable returns the quoted name of the outbox that the sink writes, or "".
func (s *Sink) outboxTable(f *config.File) string {
	if s.Outbox == nil {
		return ""
	}
	store, err := find(f, s.Store.Name)
	if err != nil {
		return ""
	}
	table, _ := store.names().Table("outbox") // "" if the names are invalid, which opening reports
	return table
}

// Examine implements config.Kind.
func (s *Sink) Examine(ctx context.Context, x *config.Examination) {
	dsn, err := s.database(x.File)
	if err != nil {
		x.Fail("sink", err)
		return
	}
	server, err := pgxpool.ParseConfig(dsn.Reveal())
	if err == nil {
		err = notPastLocks(ctx, server.ConnConfig, func(ctx context.Context) error { return s.plan(ctx, server.ConnConfig, x) })
	}
	x.Fail("sink", err)
}

// plan makes the server plan the statements of a sink. This checks tables,
// columns, the unique key of an upsert and the write privilege. Nothing is
// executed.
func (s *Sink) plan(ctx context.Context, server *pgx.ConnConfig, x *config.Examination) error {
	conn, err := pgx.ConnectConfig(ctx, server)
	if err != nil {
		return fmt.Errorf("%w: %w", semel.ErrStoreUnavailable, err)
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	subject := "sink.postgres.table"
	switch {
	case s.Statement != "":
		subject = "sink.postgres.statement"
		_, err = conn.Prepare(ctx, "", s.Statement)
	case s.Table != "":
		var table pgx.Identifier
		if table, err = postgres.ParseTable(s.Table); err == nil {
			_, err = conn.Exec(ctx, postgres.Plan(table, s.Columns, s.Key), pgx.QueryExecModeExec)
		}
	}
	if table := s.outboxTable(x.File); err == nil && table != "" {
		subject = "sink.postgres.outbox"
		_, err = conn.Exec(ctx, "EXPLAIN INSERT INTO "+table+" (id, aggregate, topic, payload, headers) VALUES (DEFAULT, DEFAULT, DEFAULT, DEFAULT, DEFAULT)", pgx.QueryExecModeExec)
	}
	if err != nil && conn.IsClosed() {
		return fmt.Errorf("%w: %w", semel.ErrStoreUnavailable, err)
	}
	if err != nil {
		found, remedy := x.File.Redact(err.Error()), "correct it"
		if said := s.Advise(x.File, x.Pipeline, "sink.postgres", err); said != nil {
			found, remedy = x.File.Redact(said.Cause), said.Remedy
		}
		if of := refusal(err); of != nil && of.Code == "42P01" && s.Table != "" && subject == "sink.postgres.table" {
			if sql, err := s.createTable(ctx, conn); err == nil {
				remedy += "; with types to your taste: " + sql
			}
		}
		x.Note(doctor.Broken, subject, found, "no row is written", remedy)
		return nil
	}
	x.Note(doctor.Fine, subject, "the server can plan the statement", "", "")
	return nil
}

// createTable returns a statement that creates the table of the sink. The configuration does not
// say of which types the values in bodies are, so they are text.
func (s *Sink) createTable(ctx context.Context, conn *pgx.Conn) (string, error) {
	table, err := postgres.ParseTable(s.Table)
	if err != nil {
		return "", err
	}
	names := slices.Clone([]string(table))
	for _, c := range s.Columns {
		names = append(names, c.Name)
	}
	var quoted []string
	err = conn.QueryRow(ctx, "SELECT array_agg(quote_ident(name) ORDER BY n) FROM unnest($1::text[]) WITH ORDINALITY AS t(name, n)", names).Scan(&quoted)
	if err != nil {
		return "", err
	}
	table, quoted = pgx.Identifier(quoted[:len(table)]), quoted[len(table):]
	var lines, key []string
	for i, c := range s.Columns {
		lines = append(lines, quoted[i]+" "+typeOf(c.From, c.Name == s.Version))
		if slices.Contains(s.Key, c.Name) {
			key = append(key, quoted[i])
		}
	}
	if key != nil {
		lines = append(lines, "PRIMARY KEY ("+strings.Join(key, ", ")+")")
	}
	return "CREATE TABLE " + strings.Join(table, ".") + " (" + strings.Join(lines, ", ") + ")", nil
}

// typeOf returns the type of a column for a value of a message.
func typeOf(from string, version bool) string {
	switch from {
	case "body":
		return "jsonb"
	case "time":
		return "timestamptz"
	case "record-key":
		return "bytea"
	case "attempt", "token", "partition", "offset":
		return "bigint"
	}
	if version {
		return "bigint"
	}
	return "text"
}
