package keyrecord

import (
	"context"
	"encoding/hex"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/httpidem"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/jsonid"
)

// DefaultScope is the default scope of dedup and keys.
const DefaultScope = "default"

// KeyFlags select one key.
type KeyFlags struct {
	jsonID bool
	digest string
	caller string
}

// Add adds --json-id.
func (f *KeyFlags) Add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.jsonID, "json-id", false, "each ID is a JSON value: '\"42\"' is the string, '42' the number")
}

// AddDigest adds --digest.
func (f *KeyFlags) AddDigest(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.digest, "digest", "", "`DIGEST` of the key, as keys ls prints it, instead of the ID")
	term.CompleteValues(cmd, "digest")
}

// AddCaller adds --caller.
func (f *KeyFlags) AddCaller(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.caller, "caller", "", "`NAME` of the caller: the ID is an Idempotency-Key that semel proxy got from it")
	term.CompleteValues(cmd, "caller")
}

// OfCaller reports whether the key is one of semel proxy.
func (f *KeyFlags) OfCaller() bool { return f.caller != "" }

// Caller returns the name of the caller, or "" without one.
func (f *KeyFlags) Caller() string { return f.caller }

// Digest returns the digest of --digest, and whether the flag was set. words are
// the IDs that were given as well.
func (f *KeyFlags) Digest(words []string, p *term.Problems) (semel.Digest, bool) {
	if f.digest == "" {
		return semel.Digest{}, false
	}
	if len(words) > 0 || f.jsonID || f.caller != "" {
		p.Addf("--digest and an ID exclude each other: name the key one way")
	}
	d, ok := ParseDigest(f.digest)
	if !ok {
		p.Addf("--digest %q: expected the 32 hexadecimal digits that semel keys ls prints", f.digest)
	}
	return d, true
}

// Keys returns the keys that the words may mean.
func (f *KeyFlags) Keys(scope string, words []string, p *term.Problems) []semel.Key {
	if len(words) == 0 {
		p.Addf("the ID of the key is missing: name the key, or --digest DIGEST as semel keys ls prints it")
		return nil
	}
	var (
		ids []string
		err error
	)
	switch {
	case f.caller != "" && (f.jsonID || len(words) > 1):
		p.Addf("--caller takes one Idempotency-Key, without --json-id")
		return nil
	case f.caller != "": // the proxy stores the value of a header by its digest
		ids = IDsOfCaller(f.caller, words[0])
	case f.jsonID:
		var id string
		text := words[0]
		if len(words) > 1 {
			text = "[" + strings.Join(words, ",") + "]"
		}
		id, err = jsonid.NewParser().ID([]byte(text))
		ids = []string{id}
	default:
		ids, err = IDReadings(words)
	}
	if err != nil {
		p.Addf("ID %s: %v", strings.Join(words, " "), err)
		return nil
	}
	keys := make([]semel.Key, len(ids))
	for i, id := range ids {
		keys[i] = semel.Key{Scope: scope, ID: id}
		if err := keys[i].Validate(); err != nil {
			p.Addf("%v", err)
			return nil
		}
	}
	return keys
}

// IDsOfCaller returns the ids that an Idempotency-Key of a caller may have.
func IDsOfCaller(caller, value string) []string {
	return []string{httpidem.Key("", caller, value).ID, httpidem.Key("", config.HashedCaller(caller), value).ID}
}

// CallerIn returns the caller in the id of an Idempotency-Key; see httpidem.Key. ok is false if
// the id is not one of this key.
func CallerIn(id, key string) (caller string, ok bool) {
	length, rest, ok := strings.Cut(id, ":")
	n, err := strconv.Atoi(length)
	if !ok || err != nil || n < 0 || n >= len(rest) || rest[n:] != ":"+key {
		return "", false
	}
	return rest[:n], true
}

// listFor limits a search for the callers of an Idempotency-Key.
const listFor = time.Second

// OfCallers returns the records of an Idempotency-Key in a scope whose callers a function
// accepts, and whether the scope has any record. It finds the records whose ids the store keeps,
// and looks for a second at most: it is a hint, and an error ends it.
func OfCallers(ctx context.Context, store semel.Store, scope, key string, accept func(caller string) bool) (found []semel.Record, any bool) {
	lister, ok := semel.As[semel.Inspector](store)
	if !ok {
		return nil, false
	}
	ctx, cancel := context.WithTimeout(ctx, listFor)
	defer cancel()
	for record, err := range lister.List(ctx, semel.ListOptions{Scope: &scope}) {
		if err != nil || ctx.Err() != nil {
			break
		}
		any = true
		if caller, ok := CallerIn(record.Key.ID, key); ok && accept(caller) {
			found = append(found, record)
		}
	}
	return found, any
}

// AnyPassword accepts the callers that are a user of HTTP Basic authentication, whatever the
// password was.
func AnyPassword(name string) func(caller string) bool {
	return func(caller string) bool {
		user, ok := config.UserOf(caller)
		return ok && user == name
	}
}

// ParseDigest reads a digest as keys ls prints it.
func ParseDigest(text string) (d semel.Digest, ok bool) {
	if len(text) != 2*len(d) {
		return d, false
	}
	_, err := hex.Decode(d[:], []byte(text))
	return d, err == nil && d != semel.Digest{}
}
