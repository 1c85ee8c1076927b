package pgstore

import (
	"strings"
	"testing"

	"github.com/semel-dev/semel"
)

func TestAPrivilegeThatOneTableLacksIsFound(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		made MigrateOptions
		// revoked are privileges by table, each without which calls fail, and
		// truncates a table that clean-up truncates.
		revoked   map[string]string
		truncates string
	}{
		"partitions":   {MigrateOptions{Partitions: 2}, map[string]string{"keys": "INSERT", "keys_0": "UPDATE", "keys_1": "DELETE"}, ""},
		"message time": {MigrateOptions{Cleanup: CleanupMessageTime}, map[string]string{"times": "UPDATE", "keys_0": "SELECT", "keys_31": "DELETE"}, "keys_7"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := shared.Database(t)
			migrated(t, address, &c.made)
			b := openAt(t, address, nil)
			user := newRole(t, b)
			b.exec("GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON ALL TABLES IN SCHEMA public TO " + user)
			b.exec("GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO " + user)
			s := openAt(t, as(address, user), nil).Store
			if f := finding(t, s, "privileges"); f.Severity != semel.Fine {
				t.Errorf("with all privileges: %+v", f)
			}
			for table, privilege := range c.revoked {
				b.exec("REVOKE " + privilege + " ON semel_" + table + " FROM " + user)
				f := finding(t, s, "privileges")
				if f.Severity != semel.Broken || !strings.Contains(f.Found, " lacks "+privilege+" on ") || !strings.Contains(f.Found, "semel_"+table) || strings.Contains(f.Found, ", ") {
					t.Errorf("without %s on %s: %+v", privilege, table, f)
				}
				b.exec("GRANT " + privilege + " ON semel_" + table + " TO " + user)
			}
			if c.truncates == "" {
				return
			}
			b.exec("REVOKE TRUNCATE ON semel_" + c.truncates + " FROM " + user)
			if f := finding(t, s, "truncate"); f.Severity != semel.Notice || !strings.Contains(f.Found, "semel_"+c.truncates) {
				t.Errorf("without TRUNCATE on %s: %+v", c.truncates, f)
			}
		})
	}
}

func TestManyThingsAreNotAllListed(t *testing.T) {
	t.Parallel()
	many := strings.Split("a b c d e f g h i j", " ")
	if got := listed(many); got != "a, b, c, d, e, f, g, h and 2 more" {
		t.Error(got)
	}
	if got := listed(many[:8]); got != "a, b, c, d, e, f, g, h" {
		t.Error(got)
	}
}
