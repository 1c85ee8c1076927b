package pgschema

import (
	"embed"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"
)

//go:embed migrations/*.sql
var files embed.FS

// messageTime is the form of clean-up that partitions by message time.
const messageTime = "message-time"

// Layout holds the table settings that can be chosen.
type Layout struct {
	Names
	// Cleanup is the form of clean-up: delete or message-time.
	Cleanup string
	// Partitions is the number of partitions of the table of keys: by hash, or by
	// message time. 0 means a plain table.
	Partitions int
	// MessageAge is the maximum age of a message, if clean-up is by message time.
	MessageAge time.Duration
	// FillFactor of the table of keys, in percent.
	FillFactor int
}

// storage holds the storage parameters of the table of keys, or of each
// partition. Autovacuum runs after a fiftieth of the table has changed, not after
// a fifth: a table of keys is large, and all of it changes.
const storage = "autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, " +
	"autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_analyze_scale_factor = 0.05"

// Step is one numbered step of the schema.
type Step struct {
	Version int
	Name    string
	SQL     string
}

// Steps returns all steps in order.
func (l *Layout) Steps() ([]Step, error) {
	names, err := fs.Glob(files, "migrations/0*.sql")
	if err != nil {
		return nil, err
	}
	steps := make([]Step, len(names))
	for i, name := range names {
		base := path.Base(name)
		number, what, _ := strings.Cut(strings.TrimSuffix(base, ".sql"), "_")
		version, err := strconv.Atoi(number)
		if err != nil || version != i+1 {
			return nil, fmt.Errorf("pgstore: %s is not step %d: %w", base, i+1, err)
		}
		sql, err := l.render(base)
		if err != nil {
			return nil, err
		}
		steps[i] = Step{version, strings.ReplaceAll(what, "_", " "), sql}
	}
	return steps, nil
}

// ReadableKeys returns the SQL that adds the columns of readable keys.
func (l *Layout) ReadableKeys() (string, error) { return l.render("ids.sql") }

// Origins returns the SQL that adds the column of origins.
func (l *Layout) Origins() (string, error) { return l.render("origin.sql") }

// CreateSchema returns the SQL that creates the schema if it does not exist.
func (n Names) CreateSchema() string {
	return "CREATE SCHEMA IF NOT EXISTS " + n.QuotedSchema()
}

// CreateMigrations returns the SQL that creates the table of applied steps if it
// does not exist.
func (n Names) CreateMigrations() string {
	return "CREATE TABLE IF NOT EXISTS " + n.Quoted("migrations") + ` (
    version integer     NOT NULL PRIMARY KEY,
    name    text        NOT NULL,
    applied timestamptz NOT NULL DEFAULT clock_timestamp()
)`
}

// Partition returns the name of a partition of the table of keys, without the
// prefix.
func Partition(i int) string { return "keys_" + strconv.Itoa(i) }

// render fills in the names and settings in one file. It does not use text/template:
// that package calls methods by name, so the linker would keep every exported method,
// and the program would be half as large again.
func (l *Layout) render(file string) (string, error) {
	text, err := files.ReadFile("migrations/" + file)
	if err != nil {
		return "", fmt.Errorf("pgstore: %s: %w", file, err)
	}
	messageTimes := ""
	if l.Cleanup == messageTime {
		part, err := files.ReadFile("migrations/messagetime.sql")
		if err != nil {
			return "", fmt.Errorf("pgstore: %w", err)
		}
		messageTimes = "\n" + string(part)
	}
	fill := strings.NewReplacer(
		"{{.Keys}}", l.Quoted("keys"), "{{.Tokens}}", l.Quoted("tokens"), "{{.Meta}}", l.Quoted("meta"), "{{.Audit}}", l.Quoted("audit"), "{{.Parked}}", l.Quoted("parked"),
		"{{.Outbox}}", l.Quoted("outbox"), "{{.Shards}}", l.Quoted("outbox_shards"), "{{.Relays}}", l.Quoted("outbox_relays"), "{{.Slots}}", l.Quoted("outbox_slots"), "{{.OutboxWrite}}", l.Quoted("outbox_write"), "{{.OutboxPipeline}}", l.Quoted("outbox_pipeline"),
		"{{.OutboxLog}}", l.Quoted("outbox_log"), "{{.OutboxLogLiteral}}", l.Literal("outbox_log"), "{{.OutboxLogPart}}", l.Prefix+"outbox_log_", "{{.OutboxLogMaintain}}", l.Quoted("outbox_log_maintain"), "{{.Schema}}", l.Schema,
		"{{.Cleanup}}", l.Cleanup, "{{.Times}}", l.Quoted("times"), "{{.MessageAge}}", strconv.FormatInt(l.MessageAge.Microseconds(), 10),
		"{{.Partitions}}", strconv.Itoa(l.Partitions), "{{.Storage}}", l.storage(),
	)
	sql := strings.Replace(string(text), "{{.MessageTime}}", messageTimes, 1)
	return fill.Replace(sql), nil
}

// storage returns the end of the statement that creates the table of keys: its storage
// parameters, or its partitions with theirs.
func (l *Layout) storage() string {
	parameters := fmt.Sprintf("WITH (fillfactor = %d, %s);\n", l.FillFactor, storage)
	if l.Partitions == 0 {
		return "\n" + parameters
	}
	by := "HASH"
	if l.Cleanup == messageTime {
		by = "RANGE"
	}
	var sql strings.Builder
	fmt.Fprintf(&sql, " PARTITION BY %s (key);\n", by)
	for i := range l.Partitions {
		fmt.Fprintf(&sql, "\nCREATE TABLE %s PARTITION OF %s\n    FOR VALUES %s\n    %s", l.Quoted(Partition(i)), l.Quoted("keys"), l.values(i), parameters)
	}
	return sql.String()
}

// values returns the partition bounds. If clean-up is by message time, the first
// byte of a key is the number of its partition.
func (l *Layout) values(i int) string {
	if l.Cleanup != messageTime {
		return fmt.Sprintf("WITH (MODULUS %d, REMAINDER %d)", l.Partitions, i)
	}
	from, to := "MINVALUE", "MAXVALUE"
	if i > 0 {
		from = firstKey(i)
	}
	if i < l.Partitions-1 {
		to = firstKey(i + 1)
	}
	return "FROM (" + from + ") TO (" + to + ")"
}

// firstKey returns the lowest key of a partition by message time.
func firstKey(i int) string { return fmt.Sprintf("'%02x000000-0000-0000-0000-000000000000'", i) }
