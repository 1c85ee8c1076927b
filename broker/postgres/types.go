package postgres

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/semel-dev/semel/key"
)

// target is what a parameter of a statement becomes, below all domains.
type target struct {
	json  bool // json or jsonb
	array bool // an array, of json or jsonb if json is set
}

// targets describe the parameters of a statement and the columns of its table.
type targets struct {
	params  []target
	columns map[string]string // the type of each column, as PostgreSQL writes it
	asked   time.Time
}

// of returns the target of a parameter, counted from 0. A nil targets has none.
func (t *targets) of(param int) target {
	if t == nil || param >= len(t.params) {
		return target{}
	}
	return t.params[param]
}

// typesLast is how long types are used before the server is asked again. A column that
// gets another type is noticed earlier if the server refuses the statement.
const typesLast = 10 * time.Second

// typesSQL resolves domains and arrays. $1 has the types of the parameters.
const typesSQL = `WITH RECURSIVE t AS (
	SELECT p.n, y.oid, y.typtype, y.typbasetype, y.typcategory, y.typelem, false AS within
	FROM unnest($1::text::oid[]) WITH ORDINALITY AS p(oid, n) JOIN pg_catalog.pg_type y ON y.oid = p.oid
	UNION ALL
	SELECT t.n, y.oid, y.typtype, y.typbasetype, y.typcategory, y.typelem, t.within OR t.typtype <> 'd'
	FROM t JOIN pg_catalog.pg_type y ON y.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype WHEN t.typcategory = 'A' AND NOT t.within THEN t.typelem END
)
SELECT n::int, oid IN ('pg_catalog.json'::regtype, 'pg_catalog.jsonb'::regtype), within FROM t
WHERE typtype <> 'd' AND (within OR typcategory <> 'A')`

// columnsSQL lists the columns of table $1 with their types.
const columnsSQL = `SELECT attname::text, pg_catalog.format_type(atttypid, atttypmod) FROM pg_catalog.pg_attribute
WHERE attrelid = pg_catalog.to_regclass($1::text) AND attnum > 0 AND NOT attisdropped`

// known reports whether learn does not need to ask the server.
func (w *writer) known() bool {
	t := w.targets.Load()
	return t != nil && time.Since(t.asked) < typesLast
}

// learn asks the server for the types of the statement's parameters, unless they are
// known. A JSON string and a JSON array are written in a way that depends on them.
func (w *writer) learn(ctx context.Context, conn *pgx.Conn) error {
	if w.known() {
		return nil
	}
	w.targets.Store(nil) // after an error, the old types may be wrong
	asked := time.Now()
	described, err := conn.Prepare(ctx, "", w.sql)
	if err != nil {
		return err
	}
	t := &targets{params: make([]target, len(described.ParamOIDs)), columns: make(map[string]string), asked: asked}
	oids := make([]string, len(described.ParamOIDs))
	for i, oid := range described.ParamOIDs {
		oids[i] = strconv.FormatUint(uint64(oid), 10)
	}
	var (
		n          int
		of         target
		name, kind string
	)
	rows, err := conn.Query(ctx, typesSQL, "{"+strings.Join(oids, ",")+"}")
	if err != nil {
		return err
	}
	if _, err := pgx.ForEachRow(rows, []any{&n, &of.json, &of.array}, func() error {
		t.params[n-1] = of
		return nil
	}); err != nil {
		return err
	}
	if w.table != nil {
		rows, err := conn.Query(ctx, columnsSQL, w.table.Sanitize())
		if err != nil {
			return err
		}
		if _, err := pgx.ForEachRow(rows, []any{&name, &kind}, func() error {
			t.columns[name] = kind
			return nil
		}); err != nil {
			return err
		}
	}
	w.targets.Store(t)
	return nil
}

// convert returns the parameter for a value of a JSON document. Numbers keep every digit.
func (t target) convert(raw []byte, kind key.Kind) (any, error) {
	switch {
	case kind == key.Missing, kind == key.Null:
		return nil, nil
	case t.array && kind == key.Array:
		return t.appendArray(nil, raw)
	case t.json && !t.array:
		if kind == key.String && !isText(raw) {
			return nil, errNoText
		}
		return string(raw), nil
	case kind == key.String:
		return textOf(raw)
	}
	return string(raw), nil
}

// textOf returns the text of a JSON string.
func textOf(raw []byte) (string, error) {
	if !isText(raw) {
		return "", errNoText
	}
	var s string
	err := json.Unmarshal(raw, &s)
	return s, err
}

// appendArray appends a JSON array as PostgreSQL writes arrays. An array within an array
// is another dimension, unless the elements are JSON documents.
func (t target) appendArray(dst, raw []byte) (string, error) {
	var elements []json.RawMessage
	if err := json.Unmarshal(raw, &elements); err != nil {
		return "", err
	}
	dst = append(dst, '{')
	for i, element := range elements {
		if i > 0 {
			dst = append(dst, ',')
		}
		element = bytes.TrimSpace(element)
		text, quoted := string(element), true
		var err error
		switch {
		case text == "null":
			text, quoted = "NULL", false
		case t.json:
		case text[0] == '[':
			text, err = t.appendArray(nil, element)
			quoted = false
		case text[0] == '"':
			text, err = textOf(element)
		}
		if err != nil {
			return "", err
		}
		if quoted {
			text = `"` + inArray.Replace(text) + `"`
		}
		dst = append(dst, text...)
	}
	return string(append(dst, '}')), nil
}

var inArray = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// named adds to an error of the server the column or the argument that it is about, and
// where the value came from.
func (w *writer) named(err error) error {
	var of *pgconn.PgError
	if !errors.As(err, &of) {
		return err
	}
	first := 0
	if w.outbox != nil {
		first = outboxParams
	}
	about := ""
	add := func(i int) {
		if about != "" {
			about += " or "
		}
		if w.columns == nil {
			about += fmt.Sprintf("argument $%d, from %s", i+1, w.values.list[i].text)
			return
		}
		about += fmt.Sprintf("column %s, from %s", w.columns[i].Name, w.values.list[i].text)
	}
	if found := paramInContext.FindStringSubmatch(of.Where); found != nil {
		if n, err := strconv.Atoi(found[1]); err == nil && n > first && n-1-first < len(w.values.list) {
			add(n - 1 - first)
		}
	}
	t := w.targets.Load()
	for i, c := range w.columns {
		switch {
		case about != "" && of.ColumnName == "" && of.Code != tooLong && of.Code != overflow:
		case c.Name == of.ColumnName,
			of.Code == tooLong && t != nil && t.columns[c.Name] != "" && strings.Contains(of.Message, t.columns[c.Name]),
			of.Code == overflow && t != nil && strings.HasPrefix(t.columns[c.Name], "numeric("):
			add(i)
		}
	}
	if about == "" {
		return err
	}
	return fmt.Errorf("%s: %w", about, err)
}

const (
	tooLong  = "22001" // string_data_right_truncation
	overflow = "22003" // numeric_value_out_of_range
)

// paramInContext finds the parameter in the context of an error. The words around it are
// in the server's language.
var paramInContext = regexp.MustCompile(`\$(\d+)`)
