package pgstore

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
)

func TestAllBadOptionsAreReportedAtOnce(t *testing.T) {
	t.Parallel()
	_, opened := New(t.Context(), nil, &Options{
		Names: Names{Schema: "A", Prefix: "-"}, MaxResult: -1, LockWait: time.Microsecond,
	})
	_, migrated := Migrate(t.Context(), nil, &MigrateOptions{Partitions: -1, FillFactor: 101})
	maintained := (&Store{}).Maintain(t.Context(), &MaintainOptions{Every: time.Millisecond})
	for err, fields := range map[error][]string{
		opened:     {"Names.Schema", "Names.Prefix", "Options.MaxResult", "Options.LockWait"},
		migrated:   {"MigrateOptions.Partitions", "MigrateOptions.FillFactor"},
		maintained: {"MaintainOptions.Every"},
	} {
		if !errors.Is(err, semel.ErrInvalidRequest) {
			t.Errorf("bad options: %v", err)
			continue
		}
		for _, field := range fields {
			if !strings.Contains(err.Error(), field+":") {
				t.Errorf("%s is not among the errors: %v", field, err)
			}
		}
	}
}

func TestDefaultsAreTheDocumentedOnes(t *testing.T) {
	t.Parallel()
	o, err := (*Options)(nil).checked()
	if err != nil || o.Schema != "public" || o.Prefix != "semel_" || o.MaxResult != 1<<20 || o.LockWait != 2*time.Second || o.retries != 5 || o.KeepIDs || o.Prepare {
		t.Errorf("defaults are %+v, %v", o, err)
	}
	m, err := (*MigrateOptions)(nil).checked()
	if err != nil || m.Partitions != 0 || m.FillFactor != 90 || m.KeepIDs {
		t.Errorf("defaults are %+v, %v", m, err)
	}
	w, err := (*MaintainOptions)(nil).checked()
	if err != nil || w.Every != 5*time.Minute {
		t.Errorf("defaults are %+v, %v", w, err)
	}
}

func TestNamesThatAreNotValidAreRefused(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"1a", "A", "a-b", `a"b`, "a;", strings.Repeat("x", 64)} {
		if _, err := SQL(&MigrateOptions{Names: Names{Schema: bad}}); !errors.Is(err, semel.ErrInvalidRequest) {
			t.Errorf("SQL in schema %q: %v", bad, err)
		}
		if _, err := (Names{Schema: bad}).Table("parked"); !errors.Is(err, semel.ErrInvalidRequest) {
			t.Errorf("a table in schema %q: %v", bad, err)
		}
	}
	if table, err := (Names{}).Table("parked"); table != `"public"."semel_parked"` || err != nil {
		t.Errorf("the table is %s, %v", table, err)
	}
}
