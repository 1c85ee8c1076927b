package webhook

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestTargetThatDoesNotAnswerIsNotReady(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &Sink{opts: Options{Timeout: 10 * time.Second}, target: "http://h"}
		want := func(silent bool) {
			t.Helper()
			var of *SilentError
			if err := s.Ready(t.Context()); errors.As(err, &of) != silent || !silent && err != nil {
				t.Errorf("%v, want silent: %v", err, silent)
			}
		}
		want(false)
		s.heard.asks()
		began := time.Now()
		time.Sleep(7 * time.Second)
		s.heard.asks()
		want(false)
		time.Sleep(time.Second)
		want(true)
		s.heard.ends(true) // given up
		if of := (*SilentError)(nil); !errors.As(s.Ready(t.Context()), &of) || !of.Since.Equal(began) {
			t.Errorf("%v, want silence since %v", of, began)
		}
		s.heard.ends(false) // answered
		want(false)
		s.heard.asks()
		time.Sleep(10 * time.Second)
		s.heard.ends(true)
		want(true)
		time.Sleep(2 * time.Minute) // nobody asks any more
		want(false)
	})
}
