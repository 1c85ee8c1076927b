package redisstore

import (
	"context"
	"fmt"

	"github.com/redis/rueidis"

	"github.com/semel-dev/semel"
)

// ExamineFilter looks at the filter that [NewFilter] would open with these
// options, and changes nothing: it makes none. Nil options are the zero options.
// It blocks for a few round trips. Errors are those of NewFilter.
func ExamineFilter(ctx context.Context, client rueidis.Client, opts *FilterOptions) ([]semel.Finding, error) {
	f, err := newFilterOf(client, opts)
	if err != nil {
		return nil, err
	}
	best, mine, err := f.wanted(ctx)
	if err != nil {
		return nil, err
	}
	made := semel.Finding{Subject: "filter"}
	answer := f.client.Do(ctx, f.client.B().Get().Key(f.name("settings")).Build())
	kept := mine
	if rueidis.IsRedisNil(answer.Error()) {
		made.Found = fmt.Sprintf("nobody has made %q yet", f.opts.Prefix)
	} else if kept, err = readSettings(answer); err != nil {
		return nil, err
	}
	if err := f.use(ctx, best, mine, kept); err != nil {
		return nil, err
	}
	if made.Found == "" {
		made.Found = fmt.Sprintf("%q is in use, in the form %s", f.opts.Prefix, f.opts.Form)
	}
	return []semel.Finding{made, {Subject: "rate", Found: fmt.Sprintf("%g", f.Rate())}}, nil
}
