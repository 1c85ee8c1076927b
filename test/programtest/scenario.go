package programtest

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel/internal/cli/term"
)

// Distinct is the number of different events in a scenario. Each is sent twice.
const Distinct = 10

// EventText returns an event with all fields that a scenario reads.
func EventText(i int) string {
	return fmt.Sprintf(`{"event_id":"e%d","order_id":"o%d","tenant":"t","payment_id":"p%d","customer":"c","amount":"%d.50","version":1}`, i, i, i, i)
}

// Scenario is a scenario that runs against real servers.
type Scenario struct {
	*testing.T
	File string
	Env  map[string]string
}

// Getenv is the environment of the scenario.
func (s *Scenario) Getenv(name string) string { return s.Env[name] }

// OpenScenario prints a scenario into its own directory.
func OpenScenario(t *testing.T, name string, env map[string]string) *Scenario {
	t.Helper()
	s := &Scenario{t, filepath.Join(t.TempDir(), "semel.yaml"), env}
	Run(t, "", "init", "--scenario", name, "-o", s.File, "-q").Check(t, term.ExitDone)
	if database := env["DATABASE_URL"]; database != "" {
		s.Semel("migrate", "up", "--config", s.File, "--store-name", "db", "-q")
		for line := range strings.Lines(ReadFile(t, s.File)) {
			if _, table, ok := strings.Cut(line, "# The target: "); ok {
				s.Query(table)
			}
		}
	}
	return s
}

// Semel runs the program, which must succeed.
func (s *Scenario) Semel(args ...string) Outcome {
	s.Helper()
	got := RunEnv(s.T, s.Getenv, "", args...)
	if got.Status != term.ExitDone {
		s.Fatalf("semel %v: %+v", args, got)
	}
	return got
}

// Doctor runs semel doctor, which may find faults.
func (s *Scenario) Doctor() Outcome {
	s.Helper()
	return RunEnv(s.T, s.Getenv, "", "doctor", s.File)
}

// Query returns the rows of a statement in the scenario's database, sorted.
func (s *Scenario) Query(sql string) (rows []string) {
	s.Helper()
	ctx := context.WithoutCancel(s.Context())
	conn, err := pgx.Connect(ctx, s.Env["DATABASE_URL"])
	if err != nil {
		s.Fatal(err)
	}
	defer conn.Close(ctx)
	list, err := conn.Query(ctx, sql)
	if err == nil {
		rows, err = pgx.CollectRows(list, pgx.RowTo[string])
	}
	if err != nil {
		s.Fatal(sql, err)
	}
	slices.Sort(rows)
	return rows
}

// Until runs the pipelines until results returns all expected results. It then
// waits a while, in which no more may arrive.
func (s *Scenario) Until(results func() []string, want []string) {
	s.Helper()
	stop := BackgroundIn(s.T, s.Getenv, "run", s.File, "--admin", "off")
	slices.Sort(want)
	var got []string
	for deadline := time.Now().Add(5 * time.Minute); len(got) < len(want) && time.Now().Before(deadline); {
		<-time.After(100 * time.Millisecond)
		got = results()
	}
	ended := stop()
	if got = results(); !slices.Equal(got, want) {
		s.Errorf("got  %q\nwant %q\n%s", got, want, ended.Stderr)
	}
	ended.Check(s.T, term.ExitDone, "running")
}

// EveryEvent returns a name with the number of each event.
func EveryEvent(name string) (list []string) {
	for i := range Distinct {
		list = append(list, fmt.Sprintf("%s%d", name, i))
	}
	return list
}
