package page

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel/internal/admin"
)

func TestOneReadsWhileTheOthersSeeTheOldList(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c cached[int]
		reads, release := 0, make(chan struct{})
		slow := func(ctx context.Context) (int, error) {
			reads++
			<-release
			return reads, ctx.Err()
		}
		get := func(ctx context.Context) (int, error) { return c.get(ctx, slow) }
		gone, cancel := context.WithCancel(t.Context())
		results := make(chan int, 2)
		for _, ctx := range []context.Context{gone, t.Context()} {
			go func() { n, _ := get(ctx); results <- n }()
			synctest.Wait()
		}
		impatient, end := context.WithTimeout(t.Context(), time.Second)
		defer end()
		if _, err := get(impatient); err == nil {
			t.Error("a reading that did not end has a result")
		}
		cancel() // the first reader's browser goes away
		release <- struct{}{}
		if a, b := <-results, <-results; a != 1 || b != 1 || reads != 1 {
			t.Errorf("%d and %d in %d reads", a, b, reads)
		}
		time.Sleep(2 * time.Second)
		go func() { n, _ := get(t.Context()); results <- n }()
		synctest.Wait()
		if n, err := get(t.Context()); n != 1 || err != nil {
			t.Errorf("while it is read again: %d, %v", n, err)
		}
		c.forget() // so that what is read now may be from before the change
		go func() { n, _ := get(t.Context()); results <- n }()
		synctest.Wait()
		release <- struct{}{}
		release <- struct{}{}
		if a, b := <-results, <-results; a+b != 5 {
			t.Errorf("after a change: %d and %d", a, b)
		}
	})
}

func TestErrorsOfAListAreKeptForSomeSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c cached[int]
		reads := 0
		failing := func(context.Context) (int, error) { reads++; return 0, errors.New("down") }
		for range 10 {
			if _, err := c.get(t.Context(), failing); err == nil {
				t.Error("no error")
			}
		}
		time.Sleep(errorAge)
		if _, err := c.get(t.Context(), failing); err == nil || reads != 2 {
			t.Errorf("%v after %d reads", err, reads)
		}
	})
}

// TestOneOverviewIsRenderedForManyPeople lets people look at one status.
func TestOneOverviewIsRenderedForManyPeople(t *testing.T) {
	t.Parallel()
	var pages rendered
	made := 0
	look := func(of *admin.Status, name string) string {
		page, err := pages.get(of, admin.Identity{Name: name}, func() ([]byte, error) {
			made++
			return fmt.Append(nil, name, made), nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return string(page)
	}
	first, second := &admin.Status{}, &admin.Status{}
	for range 20 {
		if a, b := look(first, "a"), look(first, "b"); a != "a1" || b != "b2" {
			t.Fatal(a, b)
		}
	}
	if page := look(second, "a"); page != "a3" {
		t.Error(page)
	}
	if _, err := pages.get(second, admin.Identity{}, func() ([]byte, error) { return nil, errors.New("broken") }); err == nil {
		t.Error("an error is lost")
	}
	if page := look(second, ""); page != "4" {
		t.Errorf("an error was kept: %s", page)
	}
}
