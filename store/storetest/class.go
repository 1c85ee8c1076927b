package storetest

import (
	"context"
	"errors"
	"time"

	"github.com/semel-dev/semel"
)

var classCases = []testCase{
	{"each refusal has its class", refusalsHaveClasses},
}

// refused is an error of a store, and what a caller must be able to tell from it.
type refused struct {
	what  string
	err   error
	is    error
	class semel.Class
}

// refusalsHaveClasses makes calls that a store refuses. A caller decides by the class of the
// error whether to send the request again, so an error without one could repeat an effect,
// or lose a message.
func refusalsHaveClasses(e *env) {
	key := e.key()
	held := e.fresh(e.request(key))
	claim := func(ctx context.Context, req semel.ClaimRequest) error {
		answers := make([]semel.ClaimAnswer, 1)
		return errors.Join(e.store.Claim(ctx, []semel.ClaimRequest{req}, answers), answers[0].Err)
	}
	noLease, noWindow := e.request(e.key()), e.request(e.key())
	noLease.Lease, noWindow.Window = 0, 0
	ctx := e.Context()
	late, cancel := context.WithDeadline(ctx, time.Unix(1, 0))
	defer cancel()
	list := []refused{
		{"a claim of an empty key", claim(ctx, e.request(semel.Key{Scope: "storetest"})), semel.ErrInvalidKey, semel.ClassPermanent},
		{"a claim without a lease", claim(ctx, noLease), semel.ErrInvalidRequest, semel.ClassPermanent},
		{"a claim without a window", claim(ctx, noWindow), semel.ErrInvalidRequest, semel.ClassPermanent},
		{"a claim without room for its answer", e.store.Claim(ctx, []semel.ClaimRequest{noLease}, nil), semel.ErrInvalidRequest, semel.ClassPermanent},
		{"a claim after its deadline", claim(late, e.request(e.key())), semel.ErrStoreUnavailable, semel.ClassRetryable},
		{"a completion without a window", e.complete(key, held.Token, text("r"), 0), semel.ErrInvalidRequest, semel.ClassPermanent},
		{"a completion with another token", e.complete(key, held.Token+1, text("r"), e.window), semel.ErrStaleToken, semel.ClassPermanent},
		{"a release with another token", e.release(semel.ReleaseRequest{Key: key, Token: held.Token + 1}), semel.ErrStaleToken, semel.ClassPermanent},
		{"an extension with another token", e.extend(key, held.Token+1, e.lease).Err, semel.ErrStaleToken, semel.ClassPermanent},
		{"an extension without a lease", e.extend(key, held.Token, 0).Err, semel.ErrInvalidRequest, semel.ClassPermanent},
	}
	if most := e.traits.MaxResult; most > 0 && e.traits.Results {
		list = append(list, refused{"a result that is too large", e.complete(key, held.Token, semel.Result{Kind: semel.Value, Data: noise(int(most)+1, 1)}, e.window), semel.ErrResultTooLarge, semel.ClassPermanent})
	}
	if r, ok := e.inner.(semel.Resolver); ok {
		list = append(list, refused{"to resolve a key that is not unknown", r.Resolve(ctx, semel.ResolveRequest{Key: key, As: semel.Absent, Window: e.window}), semel.ErrNotUnknown, semel.ClassPermanent})
	}
	for _, r := range list {
		if class := semel.Classify(r.err); class != r.class || !errors.Is(r.err, r.is) {
			e.Errorf("%s is refused with %v, of class %q; want an error that wraps %q, of class %q: a caller sends the request again, or gives the message up, by the class", r.what, r.err, class, r.is, r.class)
		}
	}
	e.mustComplete(key, held.Token, text("r")) // the refusals changed nothing
}
