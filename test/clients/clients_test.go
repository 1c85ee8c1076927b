//go:build unix

// Package clients checks the clients of semel serve that are written in other languages.
//
// A case of cases.json is a list of steps. The clients of all languages run the same cases,
// against the real server and through a proxy that loses, repeats, delays and cuts what
// passes. An effect is an entry in the journal of this process: it says how often an effect
// happened, whatever the client believes.
//
// A client has a file conformance.json in its folder below clients. It names its drivers,
// with the cases that the language cannot run, and why. A driver is a program that reads
// commands as JSON lines and writes answers as JSON lines; type command has its words. It
// runs each command concurrently with the others. The file also names the command that
// prepares the client, and the one that runs its own tests.
package clients

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/semel-dev/semel/test/programtest"
)

// caseSeed chooses what -short runs of the combinations of verbs and faults.
var caseSeed = flag.Uint64("case-seed", 0, "seed of the sample that -short runs")

func TestMain(m *testing.M) { programtest.Main(m) }

// client is the conformance.json of a client.
type client struct {
	// Prepare is the command that makes the client ready, if there is one. Tests runs the
	// client's own tests against the server of SEMEL_URL, and the brokers of
	// SEMEL_TEST_KAFKA, SEMEL_TEST_RABBITMQ and SEMEL_TEST_REDIS. SEMEL_PROGRAM is the
	// program, for other verbs. Both run in its folder.
	Prepare, Tests []string
	Drivers        []driver

	name, dir string
}

// driver is a program that uses a client as a case says. It runs in the client's folder.
type driver struct {
	Name    string
	Command []string
	Env     map[string]string
	// Lacks has the cases that the language cannot run, each with the reason.
	Lacks map[string]string
	// Optional: the driver runs only without -short, and only if its program is installed.
	Optional bool

	dir string
}

// clients returns the clients, ready to run.
var clients = sync.OnceValues(func() (list []client, err error) {
	files, err := filepath.Glob(filepath.Join("..", "..", "clients", "*", "conformance.json"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("no client has a conformance.json: %w", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		c := client{dir: filepath.Dir(file)}
		c.name = filepath.Base(c.dir)
		if err := json.Unmarshal(text, &c); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		for i := range c.Drivers {
			c.Drivers[i].dir = c.dir
		}
		if c.Prepare != nil {
			if output, err := c.command(c.Prepare).CombinedOutput(); err != nil {
				return nil, fmt.Errorf("prepare %s: %w\n%s", c.name, err, output)
			}
		}
		list = append(list, c)
	}
	return list, nil
})

// command returns a command in the folder of a client.
func (c *client) command(words []string) *exec.Cmd {
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Dir = c.dir
	return cmd
}

// installed reports whether the program of a driver can run.
func (d *driver) installed() bool {
	return exec.Command(d.Command[0], "--version").Run() == nil
}

// TestClientsConform runs all cases with all drivers. With -short it draws one combination of
// each case.
func TestClientsConform(t *testing.T) {
	t.Parallel()
	cases := readCases(t)
	seed := *caseSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	shared := newServer(t)
	for _, d := range drivers(t) {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			switch {
			case d.Optional && testing.Short():
				t.Skip("`make test-full` runs it")
			case !d.installed() && (d.Optional || os.Getenv("SEMEL_SERVICES") != "required"):
				t.Skipf("%s is not installed", d.Command[0])
			case !d.installed():
				t.Fatalf("%s is not installed: install it with the packages of your system", d.Command[0])
			}
			for name := range d.Lacks {
				if !slices.ContainsFunc(cases, func(c testCase) bool { return c.Name == name }) {
					t.Errorf("the driver lacks the case %q, which does not exist", name)
				}
			}
			process, random := d.start(t), rand.New(rand.NewPCG(seed, 0))
			for _, c := range cases {
				if why, lacks := d.Lacks[c.Name]; lacks {
					t.Logf("not run: %s: %s", c.Name, why)
					continue
				}
				combinations := c.combinations()
				if testing.Short() {
					combinations = combinations[random.IntN(len(combinations)):][:1]
				}
				for _, one := range combinations {
					t.Run(strings.ReplaceAll(one.title(), " ", "_"), func(t *testing.T) {
						t.Parallel()
						t.Cleanup(func() {
							if t.Failed() && testing.Short() {
								t.Logf("repeat with -case-seed %d", seed)
							}
						})
						one.run(t, d, shared, process)
					})
				}
			}
		})
	}
}

// drivers returns the drivers of all clients.
func drivers(t *testing.T) (list []driver) {
	t.Helper()
	all, err := clients()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		list = append(list, c.Drivers...)
	}
	return list
}

// TestClientsPassTheirOwnTests runs the tests that each client has in its language.
func TestClientsPassTheirOwnTests(t *testing.T) {
	t.Parallel()
	all, err := clients()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		if c.Tests == nil {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			program, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			cmd := c.command(c.Tests)
			cmd.Env = append(os.Environ(),
				"SEMEL_PROGRAM="+program, programtest.Variable+"=1",
				"SEMEL_URL="+newServer(t).url,
				"SEMEL_TEST_KAFKA="+programtest.Servers.Kafka(t),
				"SEMEL_TEST_RABBITMQ="+programtest.Servers.RabbitMQ(t),
				"SEMEL_TEST_REDIS="+programtest.Servers.Redis(t))
			if output, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", cmd, err, output)
			}
		})
	}
}
