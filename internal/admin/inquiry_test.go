package admin

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestASilentPartIsShownWithItsLastAnswer lets a part answer, fall silent for longer than its questions
// last, and answer again, while people ask who wait for less than a second.
func TestASilentPartIsShownWithItsLastAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var (
			part  Inquiry
			in    Questions
			asked int
			awake = make(chan struct{})
		)
		question := func(ctx context.Context) error {
			asked++
			select {
			case <-awake:
				return nil
			case <-ctx.Done():
				return errors.New("silent")
			}
		}
		ask := func(patience time.Duration) (a Answer, took time.Duration) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			began := time.Now()
			a = part.Ask(ctx, &in, question)
			return a, time.Since(began)
		}
		check := func(after, patience time.Duration, why string, age, most time.Duration) {
			t.Helper()
			time.Sleep(after)
			a, took := ask(patience)
			got := ""
			if a.Err != nil {
				got = a.Err.Error()
			}
			old := time.Duration(0)
			if !a.At.IsZero() {
				old = time.Since(a.At)
			}
			if got != why || old != age || took != most {
				t.Errorf("%q, %v old, in %v; want %q, %v old, in %v", got, old, took, why, age, most)
			}
		}
		const soon, long = 300 * time.Millisecond, time.Minute
		check(0, soon, "no answer yet", 0, soon)
		close(awake)
		synctest.Wait()
		check(0, long, "", 0, 0)
		awake = make(chan struct{})
		check(10*time.Second, soon, "", 10*time.Second+soon, soon)          // it is silent now
		check(0, long, "no answer for 2 s", 12*time.Second, silentFor-soon) // which is the answer
		check(0, long, "no answer for 2 s", 12*time.Second, 0)              // for no caller waits longer
		check(4*time.Second, soon, "silent", 16*time.Second, 0)             // the question has ended by then
		check(9*time.Second, long, "silent", 25*time.Second, 0)             // as did the next
		if synctest.Wait(); asked != 5 {
			t.Errorf("%d questions in 25 seconds", asked)
		}
		close(awake)
		synctest.Wait()
		check(0, long, "", 0, 0)
		awake = make(chan struct{})
		check(time.Second, soon, "", time.Second+soon, soon)
		part.Heard(errors.New("refused")) // it answered another question
		check(time.Second, soon, "refused", time.Second+soon, soon)
		began := time.Now()
		if in.Close(); time.Since(began) != 0 {
			t.Errorf("the end waited %v for a silent part", time.Since(began))
		}
		check(0, long, "the process is ending", 0, 0)
	})
}

// TestOneQuestionIsUnderWayForManyPeople asks a part twenty times concurrently.
func TestOneQuestionIsUnderWayForManyPeople(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var (
			part  Inquiry
			in    Questions
			asked int
		)
		defer in.Close()
		answers := make(chan Answer, 20)
		for range cap(answers) {
			go func() {
				answers <- part.Ask(t.Context(), &in, func(context.Context) error {
					asked++
					time.Sleep(time.Second)
					return errors.New("down")
				})
			}()
		}
		for range cap(answers) {
			if a := <-answers; a.Err == nil || !a.At.IsZero() {
				t.Errorf("%+v", a)
			}
		}
		if asked != 1 {
			t.Errorf("%d questions", asked)
		}
	})
}
