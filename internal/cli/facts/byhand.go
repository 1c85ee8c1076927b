package facts

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/admin"
	"github.com/semel-dev/semel/internal/cli/open"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/jsonid"
	"github.com/semel-dev/semel/pipeline"
)

// mostByHand is how many of the latest lines of an audit log are searched for a key.
const mostByHand = 1_000

// Change is a line of an audit log: of a change of a key, of its outcome, or of the settlement
// of a parked message.
type Change struct {
	Time, At                                  time.Time
	Operation, Verb, Outcome, Error           string
	Actor, Host, Reason                       string
	After, Message, Pipeline, Scope, Key, How string
	MessageID                                 string `json:"id"`
	Before                                    struct {
		Scope       *string
		ScopeBase64 []byte `json:"scope_base64"`
		ID          json.RawMessage
		IDBase64    []byte `json:"id_base64"`
		Digest      string
		State       string
	}
}

// OfKey returns the key of a change, or one without an ID if the log does not have it.
func (c *Change) OfKey() semel.Key {
	if c.How != "" {
		return semel.Key{Scope: c.Scope, ID: c.Key}
	}
	k := semel.Key{Scope: string(c.Before.ScopeBase64), ID: string(c.Before.IDBase64)}
	if c.Before.Scope != nil {
		k.Scope = *c.Before.Scope
	}
	if k.ID == "" && len(c.Before.ID) > 0 {
		k.ID, _ = jsonid.NewParser().ID(c.Before.ID) // a line without an id is of no key
	}
	return k
}

// changedByHand adds what people did to some keys and their parked messages, from the newest lines
// of an audit log. of is a store or a place of parked messages.
func (q *Question) changedByHand(ctx context.Context, of admin.AuditTail, place string, keys []semel.Key) {
	lines, err := of.AuditTail(ctx, mostByHand)
	if err != nil { // the user of a database may lack the privilege
		q.Remark("audit log of %s: not read: %s", place, term.JoinLines(err.Error()))
		return
	}
	if len(lines) > 0 {
		q.Remark("audit log of %s: its newest %s", place, term.Plural(len(lines), "line"))
	}
	outcomes := map[string]string{} // by the operation
	var changes []Change
	for _, line := range lines {
		var c Change
		if json.Unmarshal(line, &c) != nil {
			continue // the audit page shows it
		}
		switch {
		case c.Verb == "" && c.Operation != "":
			outcomes[c.Operation] = c.Outcome
		case c.How == pipeline.HowRedriven: // by the pipeline
		case slices.Contains(keys, c.OfKey()), q.ByDigest && c.Before.Digest == q.Digest.String():
			changes = append(changes, c)
		}
	}
	for i := range changes {
		c := &changes[i]
		what := fmt.Sprintf("%s of parked message %s of %s", c.How, c.MessageID, c.Pipeline)
		if c.How == "" {
			what = fmt.Sprintf("%s, from %s to %s", c.Verb, c.Before.State, c.After)
			if c.Message != "" {
				what += ", for parked message " + c.Message
			}
			what += ": " + cmp.Or(outcomes[c.Operation], "outcome not known")
		}
		q.add(cmp.Or(c.Time, c.At), "audit log of "+place, fmt.Sprintf("%s, by %s: %s", what, c.Actor, c.Reason))
	}
}

// changedInStore adds what people did to some keys, if their store has an audit log.
func (q *Question) changedInStore(ctx context.Context, store semel.Store, at *Place, keys []semel.Key) {
	if of, ok := semel.As[admin.AuditTail](store); ok {
		q.changedByHand(ctx, of, "store "+at.Store, keys)
	}
}

// ParkedByHand adds what people did to parked messages of a pipeline with the key, if their place
// has an audit log of its own.
func (q *Question) ParkedByHand(ctx context.Context, letters pipeline.DeadLetters, p *config.Pipeline) {
	if of, ok := letters.(admin.AuditTail); ok {
		q.changedByHand(ctx, of, "the parked messages of "+p.Name, open.InEach([]string{p.Key.Scope}, q.IDs))
	}
}
