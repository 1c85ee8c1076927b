package redisstore

import (
	"errors"
	"strings"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/test/services/servicestest"
)

func TestDoctorExaminesAFilterAndCreatesNone(t *testing.T) {
	t.Parallel()
	server := servicestest.StartRedis(t, nil)
	client := connect(t, server.URL(), nil)
	opts := FilterOptions{Prefix: "f:", Capacity: 1000, Rate: 0.01}
	look := func() string {
		t.Helper()
		findings, err := ExamineFilter(t.Context(), client, &opts)
		if err != nil {
			t.Fatal(err)
		}
		if rate := find(t, findings, "rate"); rate.Found != "0.01" {
			t.Errorf("the rate: %+v", rate)
		}
		return find(t, findings, "filter").Found
	}
	if found := look(); found != `the filter "f:" does not exist yet` {
		t.Error(found)
	}
	if n := do(t, server.Addr(), "DBSIZE"); n != int64(0) {
		t.Errorf("looking made %v names", n)
	}
	newFilter(t, client, opts)
	if found := look(); found != `"f:" is in use, in the form bits` {
		t.Error(found)
	}
	opts.Rate = 0.02
	if _, err := ExamineFilter(t.Context(), client, &opts); !errors.Is(err, semel.ErrInvalidRequest) || !strings.Contains(err.Error(), "the filter was made with the options") {
		t.Errorf("with other options: %v", err)
	}
}

func TestTraitsAreKnownWithoutAServer(t *testing.T) {
	t.Parallel()
	client := connect(t, servers.Redis(t), nil)
	for _, opts := range []*Options{nil, {Persistence: Synced, MaxResult: 7}, {Persistence: Logged, Compact: compactForm()}} {
		known, err := opts.Traits()
		if err != nil {
			t.Fatal(err)
		}
		filled := opts.withDefaults()
		filled.Prefix = servicestest.Prefix()
		store, err := New(t.Context(), client, &filled)
		if err != nil {
			t.Fatal(err)
		}
		if store.Traits() != known {
			t.Errorf("the traits of %+v are %+v, and known as %+v", opts, store.Traits(), known)
		}
	}
	if _, err := (&Options{MaxResult: -1, Prefix: "{"}).Traits(); !errors.Is(err, semel.ErrInvalidRequest) || !strings.Contains(err.Error(), "Prefix") || !strings.Contains(err.Error(), "MaxResult") {
		t.Errorf("of bad options: %v", err)
	}
}
