package pgschema

import (
	"bytes"
	"embed"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"text/template"
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

// partition is one partition, for the templates.
type partition struct{ Name, Values string }

// render fills in the quoted names in one file.
func (l *Layout) render(file string) (string, error) {
	t, err := template.ParseFS(files, "migrations/"+file)
	if err != nil {
		return "", fmt.Errorf("pgstore: %s: %w", file, err)
	}
	var partitions []partition
	for i := range l.Partitions {
		partitions = append(partitions, partition{l.Quoted(Partition(i)), l.values(i)})
	}
	var sql bytes.Buffer
	err = t.Execute(&sql, map[string]any{
		"Keys": l.Quoted("keys"), "Tokens": l.Quoted("tokens"), "Meta": l.Quoted("meta"), "Audit": l.Quoted("audit"), "Parked": l.Quoted("parked"),
		"Cleanup": l.Cleanup, "Times": l.Quoted("times"), "MessageAge": l.MessageAge.Microseconds(),
		"Partitions": partitions, "Storage": fmt.Sprintf("fillfactor = %d, %s", l.FillFactor, storage),
	})
	if err != nil {
		return "", fmt.Errorf("pgstore: %s: %w", file, err)
	}
	return sql.String(), nil
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
