package redisstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/semel-dev/semel"
)

// torn is a client whose pipelines go to several servers, none of which
// answers. Each command meets the next one of the faults.
type torn struct {
	rueidis.Client
	faults []error
}

func (c *torn) DoMulti(_ context.Context, commands ...rueidis.Completed) []rueidis.RedisResult {
	results := make([]rueidis.RedisResult, len(commands))
	for i := range commands {
		results[i] = rueidis.NewErrorResult(c.faults[i%len(c.faults)])
	}
	return results
}

// TestOutcomeIsUnknownWhenOneServerRefusesAndAnotherIsSilent expects that the refusal
// of one server does not mean for both that nothing changed.
func TestOutcomeIsUnknownWhenOneServerRefusesAndAnotherIsSilent(t *testing.T) {
	t.Parallel()
	s := newStore(t, nil)
	s.setGet = true        // the test does not ask the server
	const n = maxUnits + 1 // this many need two runs of a script
	var claims, oneStep []semel.ClaimRequest
	var completions []semel.CompleteRequest
	for i := range n {
		req := ask(fmt.Sprint("key ", i), 1)
		claims, oneStep = append(claims, req), append(oneStep, done(req))
		completions = append(completions, semel.CompleteRequest{Key: req.Key, Token: 1, Window: time.Hour})
	}
	refused := error(&net.OpError{Op: "dial", Err: errors.New("connection refused")})
	client := s.client
	for _, c := range []struct {
		faults []error
		want   semel.Class
	}{
		{[]error{refused, refused}, semel.ClassRetryable},
		{[]error{refused, io.EOF}, semel.ClassUnknown},
		{[]error{io.EOF, refused}, semel.ClassUnknown},
		{[]error{refused, refused, io.EOF}, semel.ClassUnknown},
	} {
		s.client = &torn{client, c.faults}
		for name, call := range map[string]func() error{
			"claims":      func() error { return s.Claim(t.Context(), claims, make([]semel.ClaimAnswer, n)) },
			"one step":    func() error { return s.Claim(t.Context(), oneStep, make([]semel.ClaimAnswer, n)) },
			"completions": func() error { return s.Complete(t.Context(), completions, make([]error, n)) },
		} {
			if len(c.faults) > 2 && name != "one step" {
				continue // there are only two runs
			}
			if err := call(); semel.Classify(err) != c.want {
				t.Errorf("%s with %v: %v of class %s, want %s", name, c.faults, err, semel.Classify(err), c.want)
			}
		}
	}
}
