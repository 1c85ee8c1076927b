package wiring

import (
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/store/redisstore"
)

// Check returns what stores know to be wrong with their addresses without
// connecting: a port that is none, a setting that there is not, a file of
// certificates that cannot be read. It names the store, and of the address
// nothing but what the driver says of it.
func Check(f *config.File) []schema.Problem {
	var problems []schema.Problem
	for _, s := range f.Stores {
		var field string
		var err error
		switch spec := s.Spec.(type) {
		case *config.Postgres:
			field = "postgres.dsn"
			_, err = pgxpool.ParseConfig(spec.DSN.Reveal())
		case *config.Redis:
			field = "redis.url"
			if !spec.URL.IsZero() {
				err = redisstore.CheckURL(spec.URL.Reveal())
			}
			if t := spec.TLS; t != nil && err == nil {
				field = "redis.tls"
				_, err = redisstore.TLSFiles{CA: t.CA, Certificate: t.Certificate, Key: t.Key, ServerName: t.ServerName}.Config()
			}
		}
		if err != nil {
			text := f.Redact(err.Error())
			// A driver shows the address before the reason.
			text = text[strings.LastIndex(text, "`: ")+1:]
			text = strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(text, ": "), "redisstore: "), ": invalid request")
			problems = append(problems, schema.Problem{Place: s.At, Text: "stores." + s.Name + "." + field + ": " + text})
		}
	}
	return problems
}
