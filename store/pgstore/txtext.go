package pgstore

import (
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/semel-dev/semel"
)

// textual turns arguments into literals as PostgreSQL reads them, for which
// every parameter in our statements has a cast: so they pass through every
// driver and every mode of pgx. A mode of pgx in front is left out.
func textual(m *pgtype.Map, args []any) ([]any, error) {
	if len(args) > 0 {
		if _, ok := args[0].(pgx.QueryExecMode); ok {
			args = args[1:]
		}
	}
	texts := make([]any, len(args))
	for i, arg := range args {
		if s, ok := arg.(string); ok {
			texts[i] = s
			continue
		}
		text, err := m.Encode(typeOf(arg), pgtype.TextFormatCode, arg, nil)
		if err != nil {
			return nil, fmt.Errorf("argument %d: %w: %w", i+1, semel.ErrInvalidRequest, err)
		}
		if text != nil {
			texts[i] = string(text)
		}
	}
	return texts, nil
}

// typeOf returns the type that PostgreSQL has for the Go types of our
// arguments and of the targets of our rows; 0 is none.
func typeOf(v any) uint32 {
	switch v.(type) {
	case pgtype.FlatArray[[16]byte]:
		return pgtype.UUIDArrayOID
	case pgtype.FlatArray[pgtype.Int8], pgtype.FlatArray[int64]:
		return pgtype.Int8ArrayOID
	case pgtype.FlatArray[pgtype.Int4]:
		return pgtype.Int4ArrayOID
	case pgtype.FlatArray[[]byte]:
		return pgtype.ByteaArrayOID
	case pgtype.FlatArray[pgtype.Timestamptz]:
		return pgtype.TimestamptzArrayOID
	case pgtype.FlatArray[bool]:
		return pgtype.BoolArrayOID
	case *[16]byte, [16]byte:
		return pgtype.UUIDOID
	case *pgtype.Timestamptz, pgtype.Timestamptz, *time.Time:
		return pgtype.TimestamptzOID
	case pgtype.Interval:
		return pgtype.IntervalOID
	case *pgtype.Int8, pgtype.Int8:
		return pgtype.Int8OID
	case *pgtype.Int4, pgtype.Int4:
		return pgtype.Int4OID
	case *bool, bool:
		return pgtype.BoolOID
	case *string:
		return pgtype.TextOID
	case *[]byte, []byte:
		return pgtype.ByteaOID
	}
	return 0
}
