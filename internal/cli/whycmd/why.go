// Package whycmd has the verb why, which answers questions about one key.
package whycmd

import (
	"cmp"
	"errors"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/cli/facts"
	"github.com/semel-dev/semel/internal/cli/keyrecord"
	"github.com/semel-dev/semel/internal/cli/open"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
)

// question are the flags of why, and the question that they ask.
type question struct {
	*facts.Question
	pipeline, storeName string
	scope               string
	message             string // a file with a message, or ""
	headers             []string
	choice              keyrecord.KeyFlags
}

// New returns the verb why.
func New(a *term.App) *cobra.Command {
	q := &question{Question: facts.NewQuestion(a)}
	q.Searches = true
	cmd := &cobra.Command{
		Use:   "why KEY... --config FILE",
		Short: "Show what happened to a key, and what its next delivery gets",
		Example: `semel why order-41 --config pipelines.yaml
semel why order-41 --config pipelines.yaml --since 7d --json
echo '{"id":"order-41"}' | semel why --message - --config pipelines.yaml`,
		Long: `Looks for a key in every store, outbox and topic of a configuration. It prints the
record of the key and its parked messages, what happened to the key in the order of
time, what its next delivery gets, and the commands that can follow. It changes nothing.
The last lines say where it looked, and how far.

In a Kafka topic, and in a NATS stream, it finds messages by their header semel-key, and
by the key rule of the pipeline. It reads the messages since --since, and the newest
--messages of each partition. A queue of RabbitMQ or SQS cannot be searched: its name,
or exchange and routing key, come from the row of the outbox and from the file. If a
running process has the embedded store open, or --admin names one, it also shows the
deliveries that this process dropped, retried or parked.

KEY is an ID as for semel keys. Several are the parts of one composite key. With
--message, the key rule of a pipeline finds the key in a message. With --caller, KEY is
an Idempotency-Key that semel proxy, or a service with the middleware, got from this
caller. A user name of HTTP Basic authentication stands for all its passwords. --digest
takes a digest that keys ls prints.

The exit status is 1 if a place could not be asked. A key that is nowhere is no error.`,
		SuggestFor:        []string{"trace", "explain --key"},
		ValidArgsFunction: cobra.NoFileCompletions, // the next argument is a KEY
		RunE: a.Checked(func(cmd *cobra.Command, words []string, wrong term.Problems) error {
			places := q.check(cmd, words, &wrong)
			if err := wrong.Err(); err != nil {
				return err
			}
			answer, err := q.Ask(cmd.Context(), places)
			if answer != nil {
				err = errors.Join(answer.Print(a), err)
			}
			return err
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&q.File, "config", "", "configuration `FILE` with the pipelines and stores")
	flags.StringVar(&q.pipeline, "pipeline", "", "ask only about the pipeline `NAME`")
	flags.StringVar(&q.storeName, "store-name", "", "ask only the store `NAME`")
	flags.StringVar(&q.scope, "scope", "", "`SCOPE` of the key (default that of each pipeline; default with --store-name)")
	flags.StringVar(&q.message, "message", "", "`FILE` with the body of a message, instead of the KEY; - is standard input")
	flags.StringArrayVar(&q.headers, "header", nil, "`NAME=VALUE` of a header of the message; repeat it")
	term.AddParsed(flags, &q.Since, "since", "1d", "DUR", "how far back topics are read, as in 90m or 7d", schema.ParseDuration)
	term.AddParsed(flags, &q.Patience, "timeout", "30s", "DUR", "how long the search of one source or sink may take", schema.ParseDuration)
	flags.Int64Var(&q.Most, "messages", 1_000_000, "the newest messages that are read of each partition: `N`")
	q.choice.Add(cmd)
	q.choice.AddDigest(cmd)
	q.choice.AddCaller(cmd)
	open.AddAdmin(cmd, &q.Admin)
	open.CompleteNames(a, cmd, "pipeline", (*config.File).PipelineNames)
	open.CompleteNames(a, cmd, "store-name", (*config.File).StoreNames)
	for _, name := range []string{"scope", "header"} {
		term.CompleteValues(cmd, name)
	}
	return cmd
}

// check reads the configuration and the key, and returns the places to ask.
func (q *question) check(cmd *cobra.Command, words []string, wrong *term.Problems) []facts.Place {
	set := cmd.Flags().Changed
	q.Digest, q.ByDigest = q.choice.Digest(words, wrong)
	switch {
	case q.message != "" && (len(words) > 0 || q.ByDigest || q.choice.OfCaller()):
		wrong.Addf("--message and KEY exclude each other: name the key one way")
	case q.message != "" && q.storeName != "":
		wrong.Addf("--message and --store-name exclude each other: the key rule of a pipeline finds the key")
	case q.ByDigest && set("scope"):
		wrong.Addf("--digest and --scope exclude each other: a digest is of a key with its scope")
	case q.message != "" || q.ByDigest:
	case len(words) == 0:
		wrong.Addf("KEY is missing: name the key, or --message FILE, or --digest DIGEST as semel keys ls prints it")
	default:
		for _, key := range q.choice.Keys("", words, wrong) {
			q.IDs = append(q.IDs, key.ID)
		}
		q.Caller, q.Key = q.choice.Caller(), words[0]
	}
	if len(q.headers) > 0 && q.message == "" {
		wrong.Addf("--header is for --message: leave it out")
	}
	if q.pipeline != "" && q.storeName != "" {
		wrong.Addf("--pipeline and --store-name exclude each other: leave one of them out")
	}
	for name, n := range map[string]int64{"--messages": q.Most, "--since": int64(q.Since), "--timeout": int64(q.Patience)} {
		if n < 1 {
			wrong.Addf("%s must be above 0", name)
		}
	}
	needed := config.Everything
	switch {
	case q.File == "":
		wrong.Addf("--config FILE is missing: name the configuration; for a store of semel dedup write semel keys show KEY --store DIR")
		return nil
	case q.Admin != "":
		needed = open.NoStore
	case q.storeName != "":
		needed = open.OnlyStore(q.storeName)
	}
	if q.Conf = open.ConfigFor(q.App, q.File, needed, wrong); q.Conf == nil {
		return nil
	}
	if q.Admin != "" {
		open.Admin(q.Admin, q.Conf, wrong) // reports a wrong address once
	}
	asked := q.Conf.Pipelines
	if q.pipeline != "" {
		p, ok := q.Conf.Pipeline(q.pipeline)
		if !ok {
			wrong.Addf("--pipeline %s: %s has no such pipeline: %s", q.pipeline, q.Conf.Name, schema.OneOf(q.pipeline, q.Conf.PipelineNames()))
			return nil
		}
		asked = []*config.Pipeline{p}
	}
	for _, p := range asked {
		for _, id := range keyrecord.Shaped(p.Key.Rule, q.IDs) {
			if !slices.Contains(q.IDs, id) {
				q.IDs = append(q.IDs, id)
			}
		}
	}
	if q.message != "" && len(*wrong) == 0 {
		q.keyOfMessage(asked, wrong)
	}
	return q.places(asked, set("scope"), wrong)
}

// keyOfMessage finds the key of --message by the rule of the pipeline.
func (q *question) keyOfMessage(asked []*config.Pipeline, wrong *term.Problems) {
	if len(asked) != 1 {
		wrong.Addf("--pipeline NAME is missing: --message takes the key rule of one pipeline, and %s names %s", q.Conf.Name, cmp.Or(strings.Join(q.Conf.PipelineNames(), ", "), "none"))
		return
	}
	p := asked[0]
	if p.Key.Rule == nil {
		wrong.Addf("--message: the key rule of pipeline %s needs a value that this machine lacks: name the KEY", p.Name)
		return
	}
	var headers []semel.Header
	for _, header := range q.headers {
		name, value, ok := strings.Cut(header, "=")
		if !ok || name == "" {
			wrong.Addf("--header %q: write NAME=VALUE", header)
		}
		headers = append(headers, semel.Header{Name: name, Value: []byte(value)})
	}
	in := q.Interruptible(q.Stdin)
	if q.message != "-" {
		file, err := os.Open(q.message)
		if err != nil {
			wrong.Addf("--message %s: %s", q.message, term.FileReason(err))
			return
		}
		defer file.Close()
		in = file
	}
	body, err := io.ReadAll(in)
	if err != nil {
		wrong.Addf("--message %s: %s", q.message, term.FileReason(err))
		return
	}
	id, err := facts.IDOf(p, headers, body)
	if err != nil {
		wrong.Addf("--message %s: the message has no key by the rule %s of pipeline %s: %s: add --header NAME=VALUE, or name the KEY", q.message, p.Key.Rule, p.Name, term.PlainText(err.Error()))
		return
	}
	q.IDs = []string{id}
}

// places returns the stores and pipelines to ask. The keys of requests belong to callers:
// with --caller, these are also the stores that may have keys of a proxy or a service.
func (q *question) places(asked []*config.Pipeline, scoped bool, wrong *term.Problems) (list []facts.Place) {
	add := func(p *config.Pipeline, store, scope string) {
		if scoped {
			scope = q.scope
		}
		if q.ByDigest {
			scope = "" // the digest has it
		}
		if at := (facts.Place{Pipeline: p, Store: store, Scope: scope}); !slices.Contains(list, at) {
			list = append(list, at)
		}
	}
	callers, requests := q.choice.OfCaller(), config.DefaultProxyScope
	if q.Conf.Proxy != nil {
		requests = q.Conf.Proxy.Scope
	}
	if q.storeName != "" || len(q.Conf.Pipelines) == 0 && !callers {
		if s := open.ChooseStore(q.Conf, q.storeName, wrong); s != nil && callers {
			add(nil, s.Name, requests)
		} else if s != nil {
			add(nil, s.Name, keyrecord.DefaultScope)
		}
		asked = nil
	}
	switch {
	case q.storeName != "" || q.pipeline != "":
	case !callers && q.Conf.Proxy != nil:
		q.Remark("store %s: not for requests of the proxy, whose keys belong to callers: add --caller NAME, which semel keys show KEY finds", q.Conf.Proxy.Store.Name)
	case callers:
		for _, s := range q.Conf.Stores {
			if s.Spec.About().NoRecords == "" && !slices.ContainsFunc(q.Conf.Stores, func(upper *config.Store) bool {
				return slices.ContainsFunc(upper.Spec.About().Layers, func(l schema.Reference) bool { return l.Name == s.Name })
			}) {
				add(nil, s.Name, requests)
			}
		}
	}
	for _, p := range asked {
		if problem, lacks := q.Conf.Lacks(p.Name, "key.scope"); lacks && !scoped {
			wrong.Addf("%s: or choose the scope with --scope", problem)
		}
		if q.ByDigest && p.Store.Name != "" {
			add(nil, p.Store.Name, "") // it has one record of a digest, whichever pipelines use it
			continue
		}
		add(p, p.Store.Name, p.Key.Scope)
	}
	return list
}
