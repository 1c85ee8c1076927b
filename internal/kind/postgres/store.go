package postgres

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/postgres"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/pgstore"
)

// Store is a store in PostgreSQL.
type Store struct {
	config.StoreBase
	DSN schema.Secret
	// Schema and Prefix name its tables.
	Schema, Prefix string
	// Cleanup is how expired keys are removed: delete or message-time. "" is the
	// form for which the tables were created.
	Cleanup string
	// MessageAge is the maximum age of a message by the time inside its id. 0 means
	// the store's default.
	MessageAge time.Duration
	Partitions int // 0 is the store's default
	KeepIDs    config.IDs
	KeepOrigin bool
}

// NewStore returns an empty Store.
func NewStore() config.StoreKind { return &Store{} }

// Kind implements config.Kind.
func (*Store) Kind() string { return "postgres" }

// Fields implements config.Kind.
func (s *Store) Fields() schema.Mapping {
	return schema.Mapping{
		Doc: "Keys in PostgreSQL, shared by processes. A `postgres` sink in the same database writes rows and keys in one transaction.",
		Fields: []schema.Field{
			dsnField(&s.DSN).Need(),
			schema.IdentifierField("schema", &s.Schema, 63, "Schema of its tables.").Means("public"),
			schema.IdentifierField("prefix", &s.Prefix, 40, "Prefix of its table names.").Means("semel_"),
			schema.ChoiceField("cleanup", &s.Cleanup, "How expired keys are deleted. It applies when the tables are created and cannot be changed later.",
				"delete", "message-time").Means("the form of the existing tables, `delete` for new ones"),
			schema.DurationField("message_age", &s.MessageAge, "How old a UUIDv7 or ULID may be, with `cleanup: message-time`. Fixed like `cleanup`.").Means("7d"),
			schema.NumberField("partitions", &s.Partitions, 1, 1024, "Number of partitions of the table. Fixed like `cleanup`.").Means("none with `delete`, 32 with `message-time`"),
			config.KeepIDsField(&s.KeepIDs),
			config.KeepOriginField(&s.KeepOrigin, "true", "It needs the column that `semel migrate up` adds. A key then takes about 20 bytes and that text more."),
		},
		Check: func(_ schema.Value, there schema.Members) {
			if age, ok := there["message_age"]; ok && s.Cleanup != "message-time" {
				age.Wrong("it needs cleanup: message-time: write that too, or leave it out")
			}
		},
	}
}

// dsnField is the address of a PostgreSQL database.
func dsnField(target *schema.Secret) schema.Field {
	return schema.Field{
		Name: "dsn", Doc: "Address of the database, as a URL or as `host=… dbname=…`. Its `pool_max_conns` limits the connections, and `default_query_exec_mode=cache_statement` prepares statements by name, which not every pooler supports.",
		Form: schema.Form{Scalar: schema.ScalarAddress}, Read: func(v schema.Value) { postgresDSN(v, target) },
	}
}

func postgresDSN(v schema.Value, target *schema.Secret) {
	v.Address(target)
	text := target.Reveal()
	switch {
	case text == "":
	case strings.HasPrefix(target.String(), schema.HiddenText), twoAts(text):
		v.Wrong("the address cannot be parsed: in the password of a URL write %%2F for /, %%3F for ?, %%23 for # and %%40 for @; elsewhere put a value with blanks in single quotes")
	case strings.Contains(text, "://") && !schema.HasScheme(text, "postgres", "postgresql"):
		v.Wrong("not an address of a PostgreSQL server: write postgres://user:password@host:5432/database")
	}
}

// twoAts reports whether a URL has an @ in its password that is not written as
// %40. The driver ends the password at the first @ and looks up the rest as a
// host name.
func twoAts(text string) bool {
	_, rest, _ := strings.Cut(text, "://")
	authority, _, _ := strings.Cut(rest, "/")
	return strings.Count(authority, "@") > 1
}

// About implements config.StoreKind.
func (s *Store) About() config.StoreAbout {
	return config.StoreAbout{
		Shared:     true,
		Origins:    s.KeepOrigin,
		Address:    "PostgreSQL, " + s.DSN.String(),
		Exceptions: []string{"failover to an asynchronous replica forgets keys that were not yet copied"},
	}
}

// CheckAddress implements config.StoreKind.
func (s *Store) CheckAddress(bool) (field string, err error) {
	if !s.DSN.IsZero() {
		_, err = pgxpool.ParseConfig(s.DSN.Reveal())
	}
	return "dsn", err
}

// Open implements config.StoreKind.
func (s *Store) Open(ctx context.Context, env *config.StoreEnv) (semel.Store, error) {
	opts := &pgstore.Options{
		MaxResult: config.MaxResult,
		Names:     s.names(), Cleanup: pgstore.Cleanup(s.Cleanup), KeepIDs: env.File.KeepsIDs(s, s.KeepIDs),
	}
	store, err := pgstore.Connect(ctx, s.DSN.Reveal(), opts)
	if errors.Is(err, pgstore.ErrSchema) && opts.KeepIDs && s.KeepIDs == config.IDsIfNeeded { // the tables may be older, and work without
		opts.KeepIDs = false
		store, err = pgstore.Connect(ctx, s.DSN.Reveal(), opts)
	}
	if err != nil {
		return nil, err
	}
	env.OnClose(store.Close)
	return store, nil
}

func (s *Store) names() pgstore.Names { return pgstore.Names{Schema: s.Schema, Prefix: s.Prefix} }

// OpenDeadLetters implements config.Database.
func (s *Store) OpenDeadLetters(ctx context.Context) (pipeline.DeadLetterStore, error) {
	letters, err := postgres.OpenDeadLetters(ctx, s.DSN.Reveal(), s.names())
	if err != nil {
		return nil, err // not dead-letter store: a nil *DeadLetters becomes a non-nil interface
	}
	return letters, nil
}

// Clean implements config.Database.
func (s *Store) Clean(store semel.Store) func(ctx context.Context, pass func(gone int64, err error)) error {
	of, ok := semel.As[interface {
		Maintain(ctx context.Context, opts *pgstore.MaintainOptions) error
	}](store)
	if !ok {
		return nil
	}
	return func(ctx context.Context, pass func(gone int64, err error)) error {
		return of.Maintain(ctx, &pgstore.MaintainOptions{OnPass: pass})
	}
}

// Examine implements config.Kind.
func (s *Store) Examine(ctx context.Context, x *config.Examination) {
	server, err := pgxpool.ParseConfig(s.DSN.Reveal())
	if err == nil {
		err = notPastLocks(ctx, server.ConnConfig, func(ctx context.Context) error {
			if x.File.HasNoKeys(x.Store.Name) {
				return s.examineServer(ctx, x)
			}
			return s.examine(ctx, x)
		})
	}
	if said := ofMissing(err); said != nil {
		x.Note(doctor.Broken, "open", said.Cause, "nothing is processed", said.Remedy)
		return
	}
	if errors.Is(err, pgstore.ErrSchema) {
		x.Refused(err, "semel migrate up --config "+x.File.Name+" --store-name "+x.Store.Name)
		return
	}
	x.Fail("", err)
}

// examineServer examines a store whose database has no keys of this file. The pipelines
// examine the tables that they use.
func (s *Store) examineServer(ctx context.Context, x *config.Examination) error {
	findings, err := pgstore.ExamineServer(ctx, s.DSN.Reveal())
	x.Add(findings)
	return err
}

func (s *Store) examine(ctx context.Context, x *config.Examination) (err error) {
	var closing func() error
	opened, err := s.Open(ctx, &config.StoreEnv{File: x.File, Name: x.Store.Name, OnClose: func(c func() error) { closing = c }})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closing()) }()
	findings, err := opened.(*pgstore.Store).Examine(ctx)
	x.Add(findings)
	steps, failed := s.Tables(x.File, defaultPatience).Status(ctx)
	err = errors.Join(err, failed)
	if newer := config.NewerTables(steps); newer != "" {
		x.Note(doctor.Notice, "schema", newer, "this program works, and does not use what the newer version added", config.UpgradeProgram)
	}
	if x.File.KeepsIDs(s, s.KeepIDs) && !opened.(*pgstore.Store).KeepsIDs() {
		x.Note(doctor.Notice, "ids", "the table of keys has no columns for them", "a listing of unknown keys cannot name them",
			"semel migrate up --config "+x.File.Name+" --store-name "+x.Store.Name+", and then restart the pipelines; or write keep_ids: false")
	}
	if s.KeepOrigin && !opened.Traits().Origins {
		x.Note(doctor.Notice, "origins", "the table of keys has no column for them", "semel why cannot say where the first message of a key came from",
			"semel migrate up --config "+x.File.Name+" --store-name "+x.Store.Name+", and then restart the pipelines; or write keep_origin: false")
	}
	return err
}

var (
	_ config.SessionSink = (*Sink)(nil)
	_ config.Database    = (*Store)(nil)
)
