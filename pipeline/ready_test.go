package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// TestReadinessErrorContainsNoMessageContent calls Ready while the store, the sink or a policy stops
// the pipeline, with errors that contain all parts of a message.
func TestReadinessErrorContainsNoMessageContent(t *testing.T) {
	t.Parallel()
	const secret = "canary-7f3a"
	refused := &net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}, Err: syscall.ECONNREFUSED}
	fails := func(of error) error { return fmt.Errorf("of %s: %w", secret, of) }
	causes := map[string]error{
		"dial tcp 127.0.0.1:1: connection refused": refused,
		"no space left on device":                  syscall.ENOSPC,
		"unavailable":                              semel.ErrStoreUnavailable,
		"store is full":                            semel.ErrStoreFull,
		"outcome unknown":                          semel.ErrOutcomeUnknown,
		"corrupt store":                            semel.ErrCorrupt,
		"closed":                                   semel.ErrClosed,
		"":                                         errors.New("nobody knows"),
	}
	for cause, err := range causes {
		troubles := map[string]func(r *rig){
			"the store has not worked since 2000-01-01T00:00:00Z": func(r *rig) {
				r.store.claim = func(context.Context, []semel.ClaimRequest, []semel.ClaimAnswer) error { return fails(err) }
			},
			"the sink has not worked since 2000-01-01T00:00:00Z": func(r *rig) {
				r.handler = func(context.Context, pipeline.Delivery) (semel.Result, error) {
					return semel.Result{}, pipeline.Unavailable(fails(err), 0)
				}
			},
			"it ends with an error": func(r *rig) {
				r.opts.Failure.Then = pipeline.Stop
				r.handler = func(ctx context.Context, m pipeline.Delivery) (semel.Result, error) {
					if m.Key.ID == secret {
						return semel.Result{}, semel.Permanent(fails(err))
					}
					<-ctx.Done() // the drain waits for this one
					return semel.Result{}, ctx.Err()
				}
			},
		}
		for what, prepare := range troubles {
			t.Run(what+": "+cause, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					r := newRig(t)
					r.source.endless = true
					r.opts.Workers = 2
					prepare(r)
					r.add(1, secret, "a")
					r.add(2, "other", "b")
					ctx, cancel := context.WithCancel(t.Context())
					end := r.start(ctx)
					time.Sleep(time.Second)
					got := r.runner.Ready(t.Context())
					if got == nil || strings.Contains(got.Error(), secret) || !strings.HasPrefix(got.Error(), what) || !strings.Contains(got.Error(), cause) {
						t.Errorf("ready: %v; want %q, %q and nothing of the message", got, what, cause)
					}
					if !errors.Is(got, err) {
						t.Errorf("ready: %v does not wrap %v", got, err)
					}
					cancel()
					_ = end() // nil, or the error of the message
				})
			})
		}
	}
}
