package faults

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

var (
	seedFlag = flag.Uint64("seed", 0, "seed of the random choices; 0 chooses one")
	raceKeys = flag.Int("race-keys", 100_000, "how many keys the race proof has for each store")
	rounds   = flag.Int("rounds", 1, "how often each fault of a server happens")
	kills    = flag.Int("kills", 12, "how many workers are killed for each store")
)

// jobVariable of the environment has the job of a process of this binary that
// is no test.
const jobVariable = "SEMEL_FAULTS_JOB"

// job is what such a process does: one of its fields is set.
type job struct {
	Journal string // the file of a journal
	Race    *raceJob
	Work    *workJob
}

func TestMain(m *testing.M) {
	if text := os.Getenv(jobVariable); text != "" {
		if err := doJob(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(statusBroken)
		}
		os.Exit(0)
	}
	zerolog.SetGlobalLevel(zerolog.Disabled) // the proxy's
	registerMeter()
	os.Exit(m.Run())
}

func doJob(text string) error {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	ctx := context.Background()
	switch {
	case j.Journal != "":
		return serveJournal(j.Journal)
	case j.Race != nil:
		return j.Race.run(ctx)
	case j.Work != nil:
		return j.Work.run(ctx)
	}
	return errors.New("no job")
}

// process returns a process of this binary that does a job. Its standard input
// ends with this process.
func process(t *testing.T, j job) *exec.Cmd {
	t.Helper()
	text, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(program)
	command.Env = append(os.Environ(), jobVariable+"="+string(text))
	command.Stderr = os.Stderr
	return command
}

// random returns a source whose seed is printed.
func random(t *testing.T) *rand.Rand {
	t.Helper()
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d (-seed %d chooses the same)", seed, seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// eventually polls until a fact is true, for at most five minutes.
func eventually(t *testing.T, what string, fact func() bool) {
	t.Helper()
	within(t, 5*time.Minute, what, fact)
}

// within polls until a fact is true.
func within(t *testing.T, limit time.Duration, what string, fact func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for !fact() {
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			t.Fatalf("waited %v in vain: %s", limit, what)
		}
	}
}
