package configcmd

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/diagnose"
)

//go:embed scenarios/*.yaml
var scenarioFiles embed.FS

// Scenarios returns the names and purposes of the available configurations.
func Scenarios() [][2]string {
	return [][2]string{
		{"quickstart", "lines of files, without any server"},
		{"kafka-to-kafka", "outputs, keys and offsets in one transaction"},
		{"kafka-to-postgres", "a row and its key in one transaction"},
		{"kafka-to-api", "an HTTP service, keys in Redis above PostgreSQL"},
		{"rabbitmq", "a RabbitMQ queue into PostgreSQL, a row and its key in one transaction"},
		{"nats", "a NATS stream into PostgreSQL, a row and its key in one transaction"},
		{"sqs", "an SQS queue into PostgreSQL, a row and its key in one transaction"},
		{"sqs-dlq", "the dead-letter queue of that queue, with the same keys"},
		{"http-to-postgres", "requests into PostgreSQL, a row and its key in one transaction"},
		{"stripe", "events of Stripe into PostgreSQL, verified, a row and its key in one transaction"},
		{"github", "webhooks of GitHub into PostgreSQL, verified, a row and its key in one transaction"},
		{"sns", "messages of an Amazon SNS topic into PostgreSQL, verified, a row and its key in one transaction"},
		{"http-to-api", "requests to an HTTP service, refused ones parked"},
		{"order-service", "from a request through an outbox and Kafka to a webhook, under one key"},
		{"analytics", "many small events into files"},
		{"financial", "amounts, with fingerprints and versions"},
		{"filter", "some events and some of their fields, in a transaction of Kafka"},
		{"windows", "counts and sums by minute, each final, in a transaction of Kafka"},
		{"latest", "the last message of each key and minute, in a transaction of Kafka"},
		{"join", "events with the row of their customer, from a compacted topic, in a transaction of Kafka"},
		{"streams", "keys by the events' own time, in a transaction of Kafka"},
	}
}

// NewInit returns the verb init.
func NewInit(a *term.App) *cobra.Command {
	var scenario, output string
	var of composition
	var names []string
	for _, s := range Scenarios() {
		names = append(names, s[0])
	}
	cmd := &cobra.Command{
		Use:   "init [SCENARIO | --from KIND --to KIND]",
		Short: "Print a configuration to start with",
		Example: `semel init
semel init kafka-to-postgres --output orders.yaml
semel init --from rabbitmq --to webhook --store postgres`,
		Long: `Prints a commented configuration that works, to stdout or to a new file. Addresses
come from the environment where they are set (KAFKA_BROKERS, RABBITMQ_ADDR,
NATS_SERVERS, SQS_QUEUE_URL, SQS_DLQ_URL, DATABASE_URL, REDIS_URL, API_URL), and else
are those of servers on this machine. STRIPE_SECRET, GITHUB_SECRET and SNS_TOPIC have no
default.
After --output, the next four commands are on stderr.

--from and --to compose a configuration: from ` + strings.Join(kindsOf(composeSources), ", ") + `
to ` + strings.Join(kindsOf(composeSinks), ", ") + `. --store is where its
keys are: ` + strings.Join(kindsOf(composeStores), ", ") + `. Without an argument, init lists the scenarios:

` + strings.TrimRight(list("  "), "\n"),
		Args:      term.Arguments(0, 1, "", "one scenario"),
		ValidArgs: names,
		RunE: a.Checked(func(_ *cobra.Command, args []string, wrong term.Problems) error {
			var text []byte
			if len(args) > 0 {
				if scenario != "" && scenario != args[0] {
					wrong.Addf("--scenario %s and %s: name one scenario", scenario, args[0])
				}
				scenario = args[0]
			}
			switch {
			case scenario != "" && of.asked():
				wrong.Addf("--scenario %s and --from, --to and --store exclude each other: leave the scenario out", scenario)
			case of.asked():
				text = of.compose(&wrong)
			case scenario == "" && len(wrong) > 0:
			case scenario == "" && output != "":
				wrong.Addf("--scenario NAME is missing: semel init lists the scenarios")
			case scenario == "":
				return listScenarios(a)
			default:
				var err error
				text, err = scenarioFiles.ReadFile("scenarios/" + scenario + ".yaml")
				if err != nil {
					wrong.Addf("--scenario %s: %s", scenario, meant(scenario, names))
					for line := range strings.Lines(list("  ")) {
						a.Note("%s", strings.TrimRight(line, "\n"))
					}
				}
			}
			if err := wrong.Err(); err != nil {
				return err
			}
			if output == "" || output == "-" {
				_, err := a.Stdout.Write(text)
				return err
			}
			return writeNew(a, output, bytes.ReplaceAll(text, []byte("semel.yaml"), []byte(term.ShellLine(output))))
		}),
	}
	cmd.Flags().StringVar(&scenario, "scenario", "", "`NAME` of the configuration")
	cmd.Flags().StringVar(&of.from, "from", "", "compose: `KIND` of the source")
	cmd.Flags().StringVar(&of.to, "to", "", "compose: `KIND` of the sink")
	cmd.Flags().StringVar(&of.store, "store", "", "compose: `KIND` of the store of the keys (default postgres for rows, none from Kafka to Kafka and for an outbox, and else embedded)")
	cmd.Flags().StringVarP(&output, "output", "o", "", "new `FILE` for the configuration (default stdout)")
	term.CompleteValues(cmd, "scenario", names...)
	term.CompleteValues(cmd, "from", kindsOf(composeSources)...)
	term.CompleteValues(cmd, "to", kindsOf(composeSinks)...)
	term.CompleteValues(cmd, "store", kindsOf(composeStores)...)
	return cmd
}

// list returns a line for each scenario.
func list(indent string) string {
	var text strings.Builder
	for _, s := range Scenarios() {
		fmt.Fprintf(&text, "%s%-18s %s\n", indent, s[0], s[1])
	}
	return text.String()
}

// scenarioLine is a scenario in JSON.
type scenarioLine struct {
	Scenario string `json:"scenario"`
	About    string `json:"about"`
}

// listScenarios prints all scenarios.
func listScenarios(a *term.App) error {
	if !a.JSON {
		_, err := io.WriteString(a.Stdout, list(""))
		return err
	}
	for _, s := range Scenarios() {
		if err := a.PrintJSON(scenarioLine{s[0], s[1]}); err != nil {
			return err
		}
	}
	return nil
}

// meant says which scenarios or which composition a person may have meant.
func meant(scenario string, names []string) string {
	words := strings.Split(scenario, "-")
	for i, word := range words {
		words[i] = spelled(word)
	}
	if other := strings.Join(words, "-"); slices.Contains(names, other) {
		return "did you mean " + other + "?"
	}
	if from, to, ok := strings.Cut(strings.Join(words, "-"), "-to-"); ok && slices.Contains(kindsOf(composeSources), from) && slices.Contains(kindsOf(composeSinks), asSink(to)) {
		return "there is no such scenario: compose it with " + term.ShellLine("semel", "init", "--from", from, "--to", asSink(to))
	}
	if near, ok := diagnose.Nearest(scenario, names); ok {
		return "did you mean " + near + "?"
	}
	like := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !slices.Contains(strings.Split(name, "-"), scenario) })
	if len(like) == 0 {
		return "there is no such scenario: name one of the list, or compose a configuration with semel init --from KIND --to KIND"
	}
	return "did you mean one of " + strings.Join(like, ", ") + "?"
}

// writeNew writes a file that must not exist yet.
func writeNew(a *term.App, name string, text []byte) (err error) {
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	switch {
	case errors.Is(err, fs.ErrExist):
		return term.Usagef("--output %s: the file exists: name another file, or remove it", name)
	case errors.Is(err, fs.ErrNotExist):
		dir := filepath.Dir(name)
		return term.Usagef("--output %s: there is no directory %s: mkdir -p %s", name, dir, term.ShellLine(dir))
	case err != nil:
		return term.Usagef("--output %s: %s", name, term.FileReason(err))
	}
	_, err = file.Write(text)
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", name, errors.Join(err, os.Remove(name)))
	}
	a.Note("wrote %s, next:", name)
	for _, line := range next(a, name, text) {
		a.Note("  %s", line)
	}
	return nil
}

// next returns the four commands that lead from a new configuration to running
// pipelines.
func next(a *term.App, name string, text []byte) []string {
	line := func(words ...string) string { return term.ShellLine(append([]string{"semel"}, words...)...) }
	second := line("explain", name)
	if conf, err := a.Kinds.ReadWithPlaceholders(name, bytes.NewReader(text), a.Env); err == nil {
		for _, s := range conf.Stores {
			if _, ok := s.Spec.(config.Database); ok {
				second = line("migrate", "up", "--config", name, "--store-name", s.Name)
			}
		}
	}
	return []string{line("lint", name), second, line("run", name, "--check"), line("run", name)}
}
