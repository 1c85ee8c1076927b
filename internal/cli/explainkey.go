package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafkaio"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/kind/kafka"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/internal/wiring"
	"github.com/semel-dev/semel/pipeline"
)

// keyQuestion asks why a message with some key was dropped or passed.
type keyQuestion struct {
	*app
	file, storeName, scope string
	ids                    []string
	choice                 keyFlags
}

func (q *keyQuestion) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&q.file, "config", "", "configuration `FILE` whose stores to look into")
	flags.StringArrayVar(&q.ids, "key", nil, "`ID` of the message; repeat it for a composite key")
	flags.StringVar(&q.scope, "scope", "", "`SCOPE` of the key (default that of each pipeline; default with --store-name)")
	flags.StringVar(&q.storeName, "store-name", "", "look into the store of this `NAME` alone")
	q.choice.add(cmd)
	completeValues(cmd, "store-name")
}

func (q *keyQuestion) asked(cmd *cobra.Command) bool {
	return slices.ContainsFunc([]string{"config", "key", "scope", "store-name", "json-id"}, cmd.Flags().Changed)
}

// keyPlace is a place that may have a record of the key.
type keyPlace struct {
	pipeline *config.Pipeline // nil if a store was named
	store    string
	scope    string
}

// keyAnswer is the information about a key in one place.
type keyAnswer struct {
	Pipeline string      `json:"pipeline,omitempty"`
	Store    string      `json:"store,omitempty"`
	Record   *recordLine `json:"record,omitempty"`
	// Origin is the first Kafka record of the key, if the keys live in Kafka.
	Origin *originLine  `json:"origin,omitempty"`
	Next   string       `json:"next,omitempty"`
	Parked []parkedLine `json:"parked,omitempty"`
	// Unseen says why nothing can be known.
	Unseen string `json:"unseen,omitempty"`

	record semel.Record
}

// originLine is the origin of a message.
type originLine struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
}

// parkedLine is a parked message with the key.
type parkedLine struct {
	ID       string `json:"id"`
	Reason   string `json:"reason"`
	Error    string `json:"error,omitempty"`
	Attempts int    `json:"attempts,omitempty"`
	At       string `json:"at"`
	Queued   bool   `json:"queued,omitempty"`
}

// answer checks all places and prints the results. If one place cannot be read,
// it continues with the others.
func (q *keyQuestion) answer(cmd *cobra.Command, args []string, wrong problems) error {
	if len(args) > 0 {
		wrong.addf("unexpected argument %q: with --key this verb takes flags only", args[0])
	}
	var keys []semel.Key
	if len(q.ids) == 0 {
		wrong.addf("--key ID is missing: name the key")
	} else {
		keys = q.choice.keys("", q.ids, &wrong)
	}
	var conf *config.File
	var places []keyPlace
	if q.file == "" {
		wrong.addf("--config FILE is missing: name the configuration")
	} else if conf = q.readNeeded(&wrong); conf != nil {
		places = q.places(cmd, conf, &wrong)
	}
	if err := wrong.err(); err != nil {
		return err
	}
	var failures []error
	printed := 0
	for _, place := range places {
		if cmd.Context().Err() != nil {
			return context.Cause(cmd.Context())
		}
		answers, err := q.look(cmd.Context(), conf, place, keys)
		if err != nil {
			failures = append(failures, err)
		}
		for _, answer := range answers {
			if err := q.print(&answer, printed > 0); err != nil {
				return err
			}
			printed++
		}
	}
	return errors.Join(failures...)
}

// readNeeded reads the configuration. If a store was named, it reads only the
// part that this store needs.
func (q *keyQuestion) readNeeded(p *problems) *config.File {
	if q.storeName == "" {
		return q.readConfig(q.file, p)
	}
	return q.readConfigFor(q.file, onlyStore(q.storeName), p)
}

// places returns the stores to read.
func (q *keyQuestion) places(cmd *cobra.Command, conf *config.File, p *problems) []keyPlace {
	if q.storeName != "" || len(conf.Pipelines) == 0 {
		s := chooseStore(conf, q.storeName, p)
		if s == nil {
			return nil
		}
		scope := q.scope
		if !cmd.Flags().Changed("scope") {
			scope = defaultScope
		}
		return []keyPlace{{store: s.Name, scope: scope}}
	}
	var list []keyPlace
	for _, p := range conf.Pipelines {
		place := keyPlace{p, p.Store.Name, p.Key.Scope}
		if cmd.Flags().Changed("scope") {
			place.scope = q.scope
		}
		list = append(list, place)
	}
	return list
}

// look reads one place. It returns an answer for each key found there, or one
// answer that says that there is none.
func (q *keyQuestion) look(ctx context.Context, conf *config.File, place keyPlace, keys []semel.Key) ([]keyAnswer, error) {
	inScope := make([]semel.Key, len(keys))
	for i, key := range keys {
		inScope[i] = semel.Key{Scope: place.scope, ID: key.ID}
	}
	first := keyAnswer{Store: place.store}
	var parked []parkedLine
	var failed error
	if place.pipeline != nil {
		first.Pipeline = place.pipeline.Name
		if parked, failed = q.parked(ctx, conf, place.pipeline, inScope); failed != nil {
			failed = fmt.Errorf("look among what pipeline %s put aside: %w", place.pipeline.Name, inOneLine(failed))
		}
	}
	first.Parked = parked
	if place.store == "" {
		answers, err := lookInKafka(ctx, conf, place.pipeline, inScope, first)
		return answers, errors.Join(failed, err)
	}
	var reasons problems
	f := &storeFlags{file: q.file, conf: conf, name: place.store}
	f.check(q.app, &reasons)
	if len(reasons) > 0 {
		first.Unseen = strings.Join(reasons, "; ")
		return []keyAnswer{first}, failed
	}
	var found []semel.Record
	err := f.withStore(ctx, q.app, func(store semel.Store) (err error) {
		k := &keysFlags{app: q.app, storeFlags: *f}
		found, err = k.lookUp(ctx, store, inScope)
		return err
	})
	if err != nil {
		return nil, errors.Join(failed, err)
	}
	if len(found) == 0 {
		found = []semel.Record{{Key: inScope[0]}}
	}
	answers := make([]keyAnswer, len(found))
	for i, record := range found {
		line := newRecordLine(&record)
		answers[i] = first
		answers[i].record, answers[i].Record, answers[i].Next = record, &line, nextDelivery(&record, place.pipeline, time.Now())
		if i > 0 {
			answers[i].Parked = nil
		}
	}
	return answers, failed
}

// lookInKafka returns what the changelog of a pipeline holds about the keys. The
// first answer starts with the fields of first.
func lookInKafka(ctx context.Context, conf *config.File, p *config.Pipeline, keys []semel.Key, first keyAnswer) ([]keyAnswer, error) {
	known, err := kafka.Look(ctx, conf, p, keys)
	switch {
	case errors.Is(err, kafkaio.ErrNoChangelog):
		first.Unseen = "nobody has run " + p.Name + " yet: " + err.Error()
		return []keyAnswer{first}, nil
	case err != nil:
		return nil, fmt.Errorf("look into the changelog of %s: %w", p.Name, err)
	case len(known) == 0:
		known = []kafkaio.KnownKey{{Key: keys[0]}}
	}
	answers := make([]keyAnswer, len(known))
	for i, k := range known {
		a := first
		if a.record = (semel.Record{Key: k.Key}); k.Topic != "" {
			a.record = semel.Record{Key: k.Key, Digest: k.Digest, State: semel.Done, FirstSeen: k.FirstSeen, Expires: k.Expires}
			a.Origin = &originLine{k.Topic, k.Partition, k.Offset}
		}
		line := newRecordLine(&a.record)
		a.Record, a.Next = &line, nextDelivery(&a.record, p, time.Now())
		if i > 0 {
			a.Parked = nil
		}
		answers[i] = a
	}
	return answers, nil
}

// parked lists the parked messages of a pipeline that have one of the keys. A
// missing directory counts as empty and is not created.
func (q *keyQuestion) parked(ctx context.Context, conf *config.File, p *config.Pipeline, keys []semel.Key) (list []parkedLine, err error) {
	letters, ok, err := wiring.ExistingDeadLetters(ctx, conf, p)
	if err != nil || !ok {
		return nil, err
	}
	defer func() { err = errors.Join(err, letters.Close()) }()
	err = letters.List(ctx, p.Name, func(m *pipeline.Parked) bool {
		if slices.Contains(keys, m.Key) {
			list = append(list, parkedLine{m.ID, string(m.Reason), q.redact(m.Error), m.Attempts, jsonTime(m.At), m.Queued})
		}
		return true
	})
	return list, err
}

// nextDelivery says what the next delivery of a key gets. This also explains why
// an earlier one was dropped or passed.
func nextDelivery(r *semel.Record, p *config.Pipeline, now time.Time) string {
	switch r.State {
	case semel.Done:
		text := "it is a duplicate: it is acknowledged without effect"
		switch r.Result.Kind {
		case semel.Value:
			text += ", and gets the stored result"
		case semel.Failed:
			text = "it is a duplicate of a message that failed for good: it is acknowledged without effect, and gets the stored error"
		}
		if !r.Expires.IsZero() {
			text += ", until " + displayTime(r.Expires)
		}
		return text
	case semel.Claimed:
		if !r.LeaseEnd.IsZero() && !r.LeaseEnd.After(now) {
			return fmt.Sprintf("it is processed, as attempt %d: the lease of the last one ended without a completion, so its effect may have happened", r.Attempt+1)
		}
		text := "it waits: " + displayText(r.Holder) + " has the key until " + displayTime(r.LeaseEnd) + " and may extend that"
		if p != nil {
			text += "; after " + schema.Duration(p.Wait) + " it goes back to a source that can take it"
		}
		return text
	case semel.Unknown:
		return "it is put aside: whether the effect happened is not known, until somebody says so with semel keys resolve"
	}
	text := "it is processed: the store knows nothing of the key. It was never claimed under this scope, its claim was given back after a failure, or it was forgotten"
	if p != nil {
		text += " after its window of " + schema.Duration(p.Window)
	}
	return text
}

// print writes an answer.
func (q *keyQuestion) print(answer *keyAnswer, further bool) error {
	if q.asJSON {
		return q.printJSON(answer)
	}
	var text strings.Builder
	fact := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&text, "%-12s %s\n", name, displayText(q.redact(value)))
		}
	}
	if further {
		text.WriteString("\n")
	}
	fact("pipeline", answer.Pipeline)
	fact("store", answer.Store)
	fact("not seen", answer.Unseen)
	if answer.Record != nil {
		if err := writeRecord(&text, &answer.record); err != nil {
			return err
		}
	}
	if o := answer.Origin; o != nil {
		fact("first in", fmt.Sprintf("%s, partition %d, offset %d", o.Topic, o.Partition, o.Offset))
	}
	for _, m := range answer.Parked {
		said := fmt.Sprintf("%s, since %s, after %s: %s", m.ID, m.At, plural(m.Attempts, "attempt"), string(m.Reason))
		if m.Error != "" {
			said += ": " + joinLines(m.Error)
		}
		if m.Queued {
			said += " (to be redriven)"
		}
		fact("put aside", said)
	}
	fact("next time", answer.Next)
	_, err := q.stdout.Write([]byte(text.String()))
	return err
}
