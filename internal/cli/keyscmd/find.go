package keyscmd

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/cli/keyrecord"
	"github.com/semel-dev/semel/internal/cli/open"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/pipeline"
)

// target is the key that a verb names: the ids that it may mean, or a digest.
type target struct {
	ids []string
	// words are the readings of the Idempotency-Key, if it is one.
	words []string
	// shaped are the ids that the key rules of the pipelines make of these, such as lower().
	shaped   []string
	digest   semel.Digest
	byDigest bool
	// scopes are where the verb looks. others are where the key may be if it is in
	// none of them.
	scopes, others []string
	// ofCallers are the records that find found if the key is an Idempotency-Key without its
	// caller, or without the password of its caller.
	ofCallers []semel.Record
}

// target reads the key from the command line.
func (k *keysFlags) target(words []string, wrong *term.Problems) *target {
	t := &target{}
	if t.digest, t.byDigest = k.key.Digest(words, wrong); t.byDigest {
		return t
	}
	for _, key := range k.key.Keys(k.scope, words, wrong) {
		t.ids = append(t.ids, key.ID)
	}
	if t.words = t.ids; k.key.OfCaller() && len(words) > 0 {
		t.words = words[:1]
	}
	return t
}

// place sets the scopes of a target: that of --scope, those of the pipelines in the
// configuration, or the default one.
func (k *keysFlags) place(cmd *cobra.Command, t *target) error {
	if t.byDigest {
		return nil
	}
	for _, p := range k.Conf.PipelinesOn(k.Found.Name) {
		if problem, lacks := k.Conf.Lacks(p.Name, "key.scope"); lacks {
			if !cmd.Flags().Changed("scope") {
				return term.Usagef("%s: or choose the scope with --scope", problem)
			}
			continue
		}
		t.shaped = append(t.shaped, keyrecord.Shaped(p.Key.Rule, t.ids)...)
		if !slices.Contains(t.scopes, p.Key.Scope) {
			t.scopes = append(t.scopes, p.Key.Scope)
		}
	}
	switch p, ok := k.Conf.ProxyOn(k.Found.Name); {
	case ok && (k.key.OfCaller() || len(t.scopes) == 0):
		t.scopes = []string{p.Scope}
	case k.key.OfCaller():
		t.scopes = []string{config.DefaultProxyScope}
	}
	known := append(slices.Clip(t.scopes), keyrecord.DefaultScope)
	if cmd.Flags().Changed("scope") {
		t.scopes = []string{k.scope}
	} else if len(t.scopes) == 0 {
		t.scopes = []string{keyrecord.DefaultScope}
	}
	for _, scope := range known {
		if !slices.Contains(t.scopes, scope) && !slices.Contains(t.others, scope) {
			t.others = append(t.others, scope)
		}
	}
	return nil
}

// keys returns the keys that the target may mean in some scopes.
func (t *target) keys(scopes []string) []semel.Key { return open.InEach(scopes, t.ids) }

// find returns the records of a target. If there is no record, absent says so, and
// where else the key is.
func (k *keysFlags) find(ctx context.Context, store semel.Store, t *target) (found []semel.Record, absent, err error) {
	if t.byDigest {
		if found, err = k.LookUpDigest(ctx, store, t.digest); err == nil && len(found) == 0 {
			absent = fmt.Errorf("the digest %s is absent: the store %s has no such key", t.digest, k.Shown())
		}
		return found, absent, err
	}
	found, err = k.LookUp(ctx, store, t.keys(t.scopes))
	if err == nil && len(found) == 0 && len(t.shaped) > 0 {
		found, err = k.LookUp(ctx, store, open.InEach(t.scopes, t.shaped))
	}
	if err != nil || len(found) > 0 {
		return found, nil, err
	}
	elsewhere, err := k.Elsewhere(ctx, store, t.ids, t.others)
	if err != nil {
		return nil, nil, err
	}
	name := keyrecord.DisplayID(t.ids[0])
	if len(elsewhere) == 0 {
		absent = fmt.Errorf("%s is absent: the store %s has no such key in %s", name, k.Shown(), keyrecord.InScopes(t.scopes))
		if k.File == "" {
			absent = fmt.Errorf("%w: a pipeline's scope is its name, or its key.scope: choose it with --scope", absent)
		}
		var fills bool
		switch t.ofCallers, fills = k.ofCallers(ctx, store, t); {
		case !k.key.OfCaller() && fills:
			absent = fmt.Errorf("%w; an Idempotency-Key needs its caller: --caller NAME", absent)
		case k.key.OfCaller() && len(t.ofCallers) > 0:
			caller, _ := keyrecord.CallerIn(t.ofCallers[0].Key.ID, t.words[0])
			absent = fmt.Errorf("%w; the password belongs to the caller: semel keys show finds its keys, such as that of --caller %s", absent, caller)
		}
		return nil, absent, nil
	}
	scopes := keyrecord.ScopesOf(elsewhere)
	return nil, fmt.Errorf("%s is absent in %s; it is in %s: %s", name, keyrecord.InScopes(t.scopes), keyrecord.InScopes(scopes), keyrecord.ChooseScope(scopes)), nil
}

// ofCallers returns the records of a target if it is an Idempotency-Key of any caller, or of any
// password of the user that --caller names, and whether a proxy fills the store.
func (k *keysFlags) ofCallers(ctx context.Context, store semel.Store, t *target) (found []semel.Record, fills bool) {
	proxy, fills := k.Conf.ProxyOn(k.Found.Name)
	if !fills && k.File != "" {
		return nil, false
	}
	scope, accept := config.DefaultProxyScope, func(string) bool { return true }
	if fills {
		scope = proxy.Scope
	}
	if name := k.key.Caller(); name != "" {
		if fills && proxy.Caller.Kind != "basic" {
			return nil, false
		}
		accept = keyrecord.AnyPassword(name)
	}
	for _, id := range t.words {
		of, any := keyrecord.OfCallers(ctx, store, scope, id, accept)
		found, fills = append(found, of...), fills || any
	}
	return found, fills
}

// eachParked calls fn with the parked messages of each pipeline of the store, until fn returns
// false. They are a hint: a place that cannot be read in time counts as empty.
func (k *keysFlags) eachParked(ctx context.Context, fn func(p *config.Pipeline, m *pipeline.Parked) bool) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	for _, p := range k.Conf.PipelinesOn(k.Found.Name) {
		if k.Admin == "" && (k.Conf.LacksAny(p.Name) || p.Parked.Store.Name != "" && !k.Conf.Needs(p.Parked.Store.Name)) {
			continue
		}
		letters, ok, err := open.Parked(ctx, k.Admin, k.Conf, p)
		if err != nil || !ok {
			continue
		}
		more := true
		_ = letters.List(ctx, p.Name, func(m *pipeline.Parked) bool {
			more = fn(p, m)
			return more
		})
		_ = letters.Close() // it was only read
		if !more {
			return
		}
	}
}

// ofPipeline returns the flags that name a pipeline on a command line.
func (k *keysFlags) ofPipeline(p *config.Pipeline) []string {
	flags := []string{"--config", k.File, "--pipeline", p.Name}
	if k.EnvFile != "" {
		flags = append(flags, "--env-file", k.EnvFile)
	}
	return flags
}

// askWhy returns the command that says everything about a key, if a pipeline of the store
// has a parked message with one of the keys.
func (k *keysFlags) askWhy(ctx context.Context, keys []semel.Key) (list []keyrecord.Command) {
	k.eachParked(ctx, func(p *config.Pipeline, m *pipeline.Parked) bool {
		if !slices.Contains(keys, m.Key) {
			return true
		}
		if line, ok := keyrecord.LineOf(&semel.Record{Key: m.Key}, "why", k.ofPipeline(p)...); ok {
			list = append(list, keyrecord.Command{Case: "a message with this key is parked; to see all about it", Line: line})
		}
		return false
	})
	return list
}

// parkedUnknown returns the commands that process the messages again that were parked because
// their keys were unknown.
func (k *keysFlags) parkedUnknown(ctx context.Context) (list []keyrecord.Command) {
	var pipelines []*config.Pipeline
	count := map[*config.Pipeline]int{}
	k.eachParked(ctx, func(p *config.Pipeline, m *pipeline.Parked) bool {
		if m.Reason == pipeline.ReasonUnknown {
			if count[p]++; count[p] == 1 {
				pipelines = append(pipelines, p)
			}
		}
		return true
	})
	for _, p := range pipelines {
		line := append([]string{"semel", "parked", "retry", "--reason", string(pipeline.ReasonUnknown)}, k.ofPipeline(p)...)
		list = append(list, keyrecord.Command{
			Case: fmt.Sprintf("then, for the %s of %s that %s parked because of such keys", term.Plural(count[p], "message"), p.Name, isAre(count[p])),
			Line: term.ShellLine(line...),
		})
	}
	return list
}

func isAre(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// one returns the only record of a list, or says how to choose one.
func one(found []semel.Record) (*semel.Record, error) {
	if len(found) == 1 {
		return &found[0], nil
	}
	if scopes := keyrecord.ScopesOf(found); len(scopes) > 1 {
		return nil, term.Usagef("%s is in %s: choose one with %s", keyrecord.DisplayID(found[0].Key.ID), keyrecord.InScopes(scopes), keyrecord.ChooseScope(scopes))
	}
	var names []string
	for _, record := range found {
		names = append(names, keyrecord.DisplayID(record.Key.ID))
	}
	return nil, fmt.Errorf("the ID means %d keys, %s: choose one with --json-id", len(found), strings.Join(names, " and "))
}

// nameOf shows the key of a record, or its digest if the key is not known.
func nameOf(r *semel.Record) string {
	if r.Key.ID == "" {
		return "the digest " + r.Digest.String()
	}
	return keyrecord.DisplayID(r.Key.ID)
}
