package postgres_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/postgres"
	"github.com/semel-dev/semel/pipeline"
)

func TestSessionWritesTheBodiesOfAFilterMap(t *testing.T) {
	t.Parallel()
	address := servers.Database(t)
	pool := open(t, address)
	exec(t, pool, "CREATE TABLE mapped (id text, body text)")
	opts := &postgres.Options{Table: "mapped", Columns: []postgres.Column{{Name: "id", From: "key"}, {Name: "body", From: "body"}}}
	opts.FilterMap = func(_ context.Context, d pipeline.Delivery) ([]byte, bool, error) {
		body := string(d.Body)
		switch {
		case strings.HasPrefix(body, "drop"):
			return nil, false, nil
		case strings.HasPrefix(body, "bad"):
			return nil, false, errors.New("no such key: x")
		}
		return []byte(strings.ToUpper(body)), true, nil
	}
	if _, err := postgres.Open(t.Context(), address, opts); !errors.Is(err, semel.ErrInvalidRequest) || !strings.Contains(err.Error(), "TwoPhaseOptions") {
		t.Errorf("a sink with a FilterMap: %v", err)
	}
	s, err := postgres.NewSession(guard(t, pool), opts)
	if err != nil {
		t.Fatal(err)
	}
	for name, bodies := range map[string][]string{
		"quickly":   {"one", "drop", "two"},
		"carefully": {"one", "bad", "drop", "two"},
		"none":      {"drop"},
	} {
		exec(t, pool, "TRUNCATE mapped")
		var list []*pipeline.Item
		var rows int64
		for _, body := range bodies {
			list = append(list, item(name+" "+body, body))
		}
		s.Process(t.Context(), list)
		for _, it := range list {
			id, body := it.Call.Key.ID, string(it.Message.Body)
			want, filtered := "delivered", body == "drop"
			if body == "bad" {
				want = "permanent"
			} else if !filtered {
				rows++
			}
			if got := class(it.Err); got != want || it.Filtered != filtered || it.Decision != semel.Fresh {
				t.Errorf("%s: %s (%v), %s, filtered %t", id, got, it.Err, it.Decision, it.Filtered)
			}
			if !strings.HasSuffix(id, body) {
				t.Errorf("%s has the body %q afterwards", id, body)
			}
		}
		if got := one[int64](t, pool, "SELECT count(*) FROM mapped WHERE body = upper(body)"); got != rows {
			t.Errorf("%s: %d rows, want %d", name, got, rows)
		}
		s.Process(t.Context(), list)
		for _, it := range list {
			if bad := string(it.Message.Body) == "bad"; bad && class(it.Err) != "permanent" || !bad && it.Decision != semel.Duplicate {
				t.Errorf("%s again: %s, %v", it.Call.Key.ID, it.Decision, it.Err)
			}
		}
	}
}
