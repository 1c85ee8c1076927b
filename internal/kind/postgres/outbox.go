package postgres

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/outbox"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/pgstore"
)

// Outbox reads the outbox of a postgres store's database.
type Outbox struct {
	config.SourceBase
	Store schema.Reference
	Keep  time.Duration // 0 keeps no rows
	// Mode is how rows are found: "wal" by logical replication, through Slot. "table" and ""
	// read the table.
	Mode, Slot string

	spec *Store // the store, once the file was checked
}

// Values of Outbox.Mode.
const modeTable, modeWAL = "table", "wal"

func (s *Outbox) wal() bool { return s.Mode == modeWAL }

// NewOutbox returns an empty Outbox.
func NewOutbox() config.Source { return &Outbox{} }

// Kind implements config.Kind.
func (*Outbox) Kind() string { return "outbox" }

// Fields implements config.Kind.
func (s *Outbox) Fields() schema.Mapping {
	return schema.Mapping{
		Doc: "Rows of the outbox in a PostgreSQL database, which services write in their transactions. The pipeline needs no `store`: a delivered row is deleted, or kept elsewhere.",
		Fields: []schema.Field{
			schema.StoreField("store", &s.Store, "Store of the kind `postgres`, whose database and tables have the outbox.").Need(),
			schema.DurationField("keep", &s.Keep, "How long delivered rows are kept, in the table `semel_outbox_log`.").Means("they are deleted"),
			schema.ChoiceField("mode", &s.Mode, "How rows are found. `table` reads the table, and several relays share the rows. `wal` reads the write-ahead log, in the order of commits and within milliseconds; one relay reads, and others are standbys. It needs `wal_level = logical`.", modeTable, modeWAL).Means(modeTable),
			schema.IdentifierField("slot", &s.Slot, 63, "Name of the replication slot and of the publication, with `mode: wal`.").Means("the name of the table, `semel_outbox`"),
		},
		Check: func(_ schema.Value, there schema.Members) {
			if slot, ok := there["slot"]; ok && s.Mode != modeWAL {
				slot.Wrong("it needs mode: wal: write that too, or leave it out")
			}
		},
	}
}

// About implements config.Source.
func (s *Outbox) About(*config.Pipeline) config.SourceAbout {
	about := config.SourceAbout{
		Name: "outbox of " + s.Store.Name, Shared: true, Outbox: s.Store,
		Again:  "its row is still there, and is read again by the relay that takes over its shard",
		Behind: "the messages behind it of the same aggregate wait",
		AfterAck: config.AfterAck{
			Unsure: "the server may lose the removal of the row in a failover to an asynchronous replica", Again: "a row that is there again", Gets: "is removed without effect",
		},
		Exceptions: []string{
			"messages of one aggregate keep their order if their transactions lock the aggregate, or check its version, before they write",
			"a row that was written with synchronous_commit=off may vanish in a crash of the server, after it was delivered",
		},
	}
	if s.wal() {
		about.Name += " by logical replication"
		about.Again = "its row is still there, and is read again by the next relay that gets the replication slot"
		about.Exceptions = append(about.Exceptions, "while no relay runs, or its target is down, the server keeps its write-ahead log; if max_slot_wal_keep_size limits that, the slot may be lost, and the rows stay in the table")
	}
	return about
}

// Check implements config.Source.
func (s *Outbox) Check(c *config.Checker, p *config.Pipeline) {
	if store, ok := c.File.Store(s.Store.Name); ok {
		s.spec, _ = store.Spec.(*Store)
	}
	for _, other := range c.File.Pipelines {
		if other == p {
			return
		}
		if of, ok := other.Source.(*Outbox); ok && of.Store.Name == s.Store.Name {
			c.Report(s.Store.At, "pipelines."+p.Name+".source.outbox.store", "%s reads the same outbox (line %d), and each of them would get a part of its messages: give each outbox its own store with a prefix, or use one pipeline", other.Name, other.At.Line)
		}
	}
}

// Lint implements config.Source.
func (s *Outbox) Lint(l *config.Linter) {
	if path := l.At("lease"); s.wal() && l.Mode == config.Direct && l.Given(path) {
		l.Notice(path, "it has no effect here", "with mode: wal a relay has the replication slot instead of leases; wal_sender_timeout of the server says how long a standby waits", "leave it out")
	}
}

// Open implements config.Source.
func (s *Outbox) Open(ctx context.Context, env *config.Env) (pipeline.Source, error) {
	store, err := find(env.File, s.Store.Name)
	if err != nil {
		return nil, err
	}
	if s.wal() {
		return config.AsSource(outbox.OpenWAL(ctx, store.DSN.Reveal(), &outbox.WALOptions{
			Names: store.names(), Slot: s.Slot, Keep: s.Keep, Observer: env.Observer, Pipeline: env.Pipeline.Name, Target: env.Pipeline.Sink.About().Name,
		}))
	}
	return config.AsSource(outbox.Open(ctx, store.DSN.Reveal(), &outbox.Options{
		Names: store.names(), Lease: env.Pipeline.Lease, Keep: s.Keep, Observer: env.Observer, Pipeline: env.Pipeline.Name, Target: env.Pipeline.Sink.About().Name,
	}))
}

// Sample implements config.Source.
func (s *Outbox) Sample(ctx context.Context, _ *config.Pipeline, fn func(*semel.Message) bool) error {
	return outbox.Sample(ctx, s.spec.DSN.Reveal(), s.spec.names(), fn)
}

// Examine implements config.Kind.
func (s *Outbox) Examine(ctx context.Context, x *config.Examination) {
	server, err := pgxpool.ParseConfig(s.spec.DSN.Reveal())
	if err == nil {
		err = notPastLocks(ctx, server.ConnConfig, func(ctx context.Context) error {
			findings, err := s.examine(ctx)
			x.Add(findings)
			return err
		})
	}
	if said := s.ofSchema(x.File, err); said != nil {
		x.Note(doctor.Broken, "source.outbox.store", said.Cause, "nothing is read", said.Remedy)
		return
	}
	x.Fail("source", err)
}

func (s *Outbox) examine(ctx context.Context) ([]doctor.Finding, error) {
	if s.wal() {
		return outbox.ExamineWAL(ctx, s.spec.DSN.Reveal(), &outbox.WALOptions{Names: s.spec.names(), Slot: s.Slot, Keep: s.Keep})
	}
	return outbox.Examine(ctx, s.spec.DSN.Reveal(), &outbox.Options{Names: s.spec.names(), Keep: s.Keep})
}

func (s *Outbox) migrate(f *config.File) string {
	return "semel migrate up --config " + f.Name + " --store-name " + s.Store.Name
}

// Advise implements config.Kind.
func (s *Outbox) Advise(f *config.File, _ *config.Pipeline, _ string, err error) *diagnose.Error {
	if said := s.ofSchema(f, err); said != nil {
		return said
	}
	if of, ok := errors.AsType[*outbox.SlotError](err); ok {
		return &diagnose.Error{Cause: of.Cause, Remedy: of.Remedy, Public: true}
	}
	if of, ok := errors.AsType[*outbox.PipelineError](err); ok {
		return &diagnose.Error{Cause: of.Cause(), Remedy: of.Remedy(), Public: true}
	}
	if of, ok := errors.AsType[*outbox.TargetError](err); ok {
		return &diagnose.Error{Cause: of.Cause(), Remedy: of.Remedy(), Public: true}
	}
	if said := ofServer(err, s.spec.DSN, "stores."+s.Store.Name+".postgres.dsn"); said != nil {
		return said
	}
	of := refusal(err)
	if of == nil || of.Code != "42501" {
		return nil
	}
	user, _ := identity(s.spec.DSN)
	if strings.Contains(of.Message, "schema") && s.Keep > 0 {
		return &diagnose.Error{Cause: of.Message, Remedy: "GRANT CREATE ON SCHEMA to the role that ran semel migrate up, which makes the partitions", Public: true}
	}
	names, to := s.spec.names(), " TO "+pgx.Identifier{user}.Sanitize()
	tables := map[string]string{}
	for _, name := range []string{"outbox", "outbox_shards", "outbox_relays", "outbox_pipeline", "outbox_log", "outbox_log_maintain", "outbox_slots"} {
		table, err := names.Table(name)
		if err != nil {
			return nil
		}
		tables[name] = table
	}
	remedy := "GRANT SELECT, DELETE ON " + tables["outbox"] + to + "; GRANT SELECT, INSERT, UPDATE, DELETE ON " + tables["outbox_shards"] + ", " + tables["outbox_relays"] + ", " + tables["outbox_pipeline"] + to
	if s.wal() {
		remedy += "; GRANT SELECT, INSERT ON " + tables["outbox_slots"] + to
	}
	if s.Keep > 0 {
		remedy += "; GRANT SELECT, INSERT ON " + tables["outbox_log"] + to + "; GRANT EXECUTE ON FUNCTION " + tables["outbox_log_maintain"] + to
	}
	return &diagnose.Error{Cause: "user " + user + ": " + of.Message, Public: true, Remedy: remedy}
}

// ofSchema describes an error about a table that is not there, or returns nil.
func (s *Outbox) ofSchema(f *config.File, err error) *diagnose.Error {
	if said := ofMissing(err); said != nil || !errors.Is(err, pgstore.ErrSchema) {
		return said
	}
	said := &diagnose.Error{Cause: "the database has no outbox", Remedy: s.migrate(f), Public: true}
	if of := refusal(err); of != nil {
		said.Cause = of.Message // of a relay that runs
	}
	if s.Keep > 0 && strings.Contains(err.Error(), "outbox_log") {
		said.Cause = "the database has no table for delivered rows"
	}
	return said
}
