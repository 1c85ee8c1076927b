package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/digest"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// filterClient connects to a server with the module, which supports both forms.
func filterClient(t testing.TB) *Client {
	t.Helper()
	return connect(t, servicestest.StartRedis(t, &services.RedisOptions{Bloom: true}).URL(), nil)
}

// eachForm runs a test with both forms of a filter.
func eachForm(t *testing.T, test func(t *testing.T, client *Client, form FilterForm)) {
	t.Helper()
	client := filterClient(t)
	for _, form := range []FilterForm{FilterModule, FilterBits} {
		t.Run(string(form), func(t *testing.T) { test(t, client, form) })
	}
}

func newFilter(t testing.TB, client rueidis.Client, opts FilterOptions) *Filter {
	t.Helper()
	if opts.Prefix == "" {
		opts.Prefix = servicestest.Prefix()
	}
	f, err := NewFilter(t.Context(), client, &opts)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// idsFrom returns n keys of one scope.
func idsFrom(scope string, from, n int) []semel.Key {
	keys := make([]semel.Key, n)
	for i := range keys {
		keys[i] = semel.Key{Scope: scope, ID: strconv.Itoa(from + i)}
	}
	return keys
}

func count(t testing.TB, f *Filter, keys []semel.Key) (maybe int) {
	t.Helper()
	answers := make([]bool, len(keys))
	if err := f.MayContain(t.Context(), keys, answers); err != nil {
		t.Fatal(err)
	}
	for _, m := range answers {
		if m {
			maybe++
		}
	}
	return maybe
}

func TestAFilterKeepsItsKeysAndItsRate(t *testing.T) {
	t.Parallel()
	eachForm(t, func(t *testing.T, client *Client, form FilterForm) {
		const n, rate = 20_000, 0.02
		f := newFilter(t, client, FilterOptions{Capacity: n, Rate: rate, Slices: 1, Form: form})
		if got := count(t, f, idsFrom("in", 0, n)); got != 0 {
			t.Fatalf("an empty filter calls %d keys maybe there", got)
		}
		if err := f.Add(t.Context(), idsFrom("in", 0, n)); err != nil {
			t.Fatal(err)
		}
		if got := count(t, f, idsFrom("in", 0, n)); got != n {
			t.Errorf("%d of %d added keys are there", got, n)
		}
		// One of two slices is full, so the rate is half: 200 of 20,000 keys,
		// with a standard deviation of 14.
		if got := float64(count(t, f, idsFrom("out", 0, n))); got < 120 || got > 280 {
			t.Errorf("%v of %d other keys are called maybe there; want about %v", got, n, n*rate/2)
		}
		if f.Rate() != rate || f.Form() != form {
			t.Errorf("it says rate %v and form %q", f.Rate(), f.Form())
		}
	})
}

func TestFullFilterRefusesAndNeverSaysAlreadyThere(t *testing.T) {
	t.Parallel()
	eachForm(t, func(t *testing.T, client *Client, form FilterForm) {
		const capacity = 100
		f := newFilter(t, client, FilterOptions{Capacity: capacity, Rate: 1e-6, Form: form})
		f.hasher = digest.New(digest.Secret{1}) // with others, a new key may be maybe there by chance
		full := false
		new := 0
		for i := 0; i < 3*capacity; i += 7 {
			keys := idsFrom("s", i, 7)
			if n := count(t, f, keys); n != 0 {
				t.Fatalf("%d of the keys from %d on, which are new, are called maybe there", n, i)
			}
			switch err := f.Add(t.Context(), keys); {
			case err == nil && full:
				t.Fatal("a full filter took more")
			case errors.Is(err, semel.ErrStoreFull):
				full = true
			case err != nil:
				t.Fatal(err)
			case count(t, f, keys) != len(keys):
				t.Fatalf("not all keys from %d on are there after they were added", i)
			}
			new += count(t, f, keys)
			if err := f.Add(t.Context(), keys); errors.Is(err, semel.ErrStoreFull) {
				full = true
			} else if err != nil || full {
				t.Fatalf("full is %t, but adding says %v", full, err)
			}
		}
		// The counter on the server is one call behind.
		if !full || new < capacity || new > capacity+14 {
			t.Errorf("full is %t after %d keys; want it after about %d", full, new, capacity)
		}
		if err := f.Add(t.Context(), idsFrom("s", 1000, 1)); !errors.Is(err, semel.ErrStoreFull) || semel.Classify(err) != semel.ClassRetryable {
			t.Errorf("adding to a full filter: %v; want it full", err)
		}
	})
}

func TestFilterForgetsWholeSlices(t *testing.T) {
	t.Parallel()
	eachForm(t, func(t *testing.T, client *Client, form FilterForm) {
		const window, slices = 4 * time.Second, 4
		f := newFilter(t, client, FilterOptions{Window: window, Slices: slices, Rate: 1e-6, Form: form})
		key := idsFrom("s", 0, 1)
		began := time.Now()
		if err := f.Add(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		added := time.Now()
		eventually(t, func() bool {
			asked := time.Now()
			there := count(t, f, key) == 1
			if !there && time.Since(began) < window {
				t.Fatalf("forgotten after %v", time.Since(began))
			}
			if there && asked.Sub(added) > window+window/slices+500*time.Millisecond {
				t.Fatalf("still there after %v", asked.Sub(added))
			}
			return !there
		}, "the key is forgotten")
		eventually(t, func() bool {
			left, err := client.Do(t.Context(), client.B().Keys().Pattern(f.name("*")).Build()).AsStrSlice()
			if err != nil {
				t.Fatal(err)
			}
			return len(left) == 1 && left[0] == f.name("settings")
		}, "the server has forgotten all but the settings")
	})
}

func TestWrongGuessOfTheServersTimeIsCorrected(t *testing.T) {
	t.Parallel()
	eachForm(t, func(t *testing.T, client *Client, form FilterForm) {
		opts := FilterOptions{Prefix: servicestest.Prefix(), Window: time.Hour, Rate: 1e-6, Form: form}
		right, wrong := newFilter(t, client, opts), newFilter(t, client, opts)
		for i, shift := range []time.Duration{-5 * time.Hour, 5 * time.Hour, -31 * time.Minute} {
			key := idsFrom("s", 10*i, 1)
			astray := func() { wrong.offset.Add(int64(shift)) }
			astray()
			if n := count(t, wrong, key); n != 0 {
				t.Fatalf("off by %v: a new key is maybe there", shift)
			}
			astray()
			if err := wrong.Add(t.Context(), key); err != nil {
				t.Fatalf("off by %v: %v", shift, err)
			}
			if count(t, right, key) != 1 {
				t.Errorf("off by %v: what was added is not in the present slice", shift)
			}
			astray()
			if count(t, wrong, key) != 1 {
				t.Errorf("off by %v: a present key is not found", shift)
			}
		}
	})
}

func TestFilterOfOtherOptionsIsRefused(t *testing.T) {
	t.Parallel()
	eachForm(t, func(t *testing.T, client *Client, form FilterForm) {
		opts := FilterOptions{Prefix: servicestest.Prefix(), Form: form}
		first := newFilter(t, client, opts)
		if err := first.Add(t.Context(), idsFrom("s", 0, 1)); err != nil {
			t.Fatal(err)
		}
		auto := opts
		auto.Form = ""
		if f := newFilter(t, client, auto); f.Form() != form || count(t, f, idsFrom("s", 0, 1)) != 1 {
			t.Errorf("who does not ask for a form gets %q and not the one that is there", f.Form())
		}
		for _, change := range []func(*FilterOptions){
			func(o *FilterOptions) { o.Capacity = 5 },
			func(o *FilterOptions) { o.Rate = 0.01 },
			func(o *FilterOptions) { o.Window = time.Hour },
			func(o *FilterOptions) { o.Slices = 3 },
			func(o *FilterOptions) {
				o.Form = map[FilterForm]FilterForm{FilterBits: FilterModule, FilterModule: FilterBits}[form]
			},
		} {
			other := opts
			change(&other)
			if _, err := NewFilter(t.Context(), client, &other); !errors.Is(err, semel.ErrInvalidRequest) {
				t.Errorf("%+v after %+v: %v; want it refused", other, opts, err)
			}
		}
	})
}

func TestFilterMadeByHandIsChecked(t *testing.T) {
	t.Parallel()
	client := filterClient(t)
	for want, command := range map[string][]string{
		"":            {"20000", "NONSCALING"},
		"scaling":     {"20000"},
		"capacity":    {"21000", "NONSCALING"},
		"at the rate": {"20000", "NONSCALING"},
	} {
		opts := FilterOptions{Prefix: servicestest.Prefix(), Capacity: 20000, Form: FilterModule}
		f := newFilter(t, client, opts)
		rate := f.opts.sliceRate()
		if want == "at the rate" {
			rate *= 2
		}
		args := append([]string{strconv.FormatFloat(rate, 'g', -1, 64)}, command...)
		for slice := range int64(2) { // the current slice may end during the test
			reserve := client.B().Arbitrary("BF.RESERVE").Keys(f.sliceKey(f.guess() + slice)).Args(args...).Build()
			if err := client.Do(t.Context(), reserve).Error(); err != nil {
				t.Fatal(err)
			}
		}
		_, err := NewFilter(t.Context(), client, &opts)
		if (err != nil) != (want != "") || want != "" && (!errors.Is(err, semel.ErrInvalidRequest) || !strings.Contains(err.Error(), want)) {
			t.Errorf("a filter made by BF.RESERVE %v: %v; want %q", args, err, want)
		}
	}
}

func TestServerWithoutModuleKeepsBits(t *testing.T) {
	t.Parallel()
	client := connect(t, servicestest.StartRedis(t, nil).URL(), nil)
	if f := newFilter(t, client, FilterOptions{}); f.Form() != FilterBits {
		t.Errorf("the form is %q", f.Form())
	}
	if _, err := NewFilter(t.Context(), client, &FilterOptions{Form: FilterModule}); !errors.Is(err, semel.ErrInvalidRequest) {
		t.Errorf("asked for the module: %v; want it refused", err)
	}
}

func TestAllBadFilterOptionsAreNamedAtOnce(t *testing.T) {
	t.Parallel()
	bad := FilterOptions{Prefix: "a{b}", Capacity: -1, Rate: 1, Slices: 65, Form: "cuckoo"}
	_, err := NewFilter(context.Background(), &Client{}, &bad)
	for _, field := range []string{"Prefix", "Capacity", "Rate", "Slices", "Form"} {
		if !errors.Is(err, semel.ErrInvalidRequest) || !strings.Contains(err.Error(), "FilterOptions."+field+":") {
			t.Errorf("the error does not name %s: %v", field, err)
		}
	}
	short := FilterOptions{Window: time.Second}
	if _, err := NewFilter(context.Background(), &Client{}, &short); !errors.Is(err, semel.ErrInvalidRequest) {
		t.Errorf("slices of half a second: %v", err)
	}
	if _, err := NewFilter(context.Background(), nil, nil); !errors.Is(err, semel.ErrInvalidRequest) {
		t.Errorf("no client: %v", err)
	}
	huge := FilterOptions{Capacity: 1 << 40, Form: FilterBits}
	if err := huge.complete(); err != nil {
		t.Fatal(err)
	}
	if _, err := huge.newForm(); !errors.Is(err, semel.ErrInvalidRequest) {
		t.Errorf("a filter larger than a string: %v", err)
	}
}

// TestBlockedFilterHasItsRate fills the blocks of filters in memory.
func TestBlockedFilterHasItsRate(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	if given := os.Getenv("SEMEL_SEED"); given != "" {
		var err error
		if seed, err = strconv.ParseUint(given, 10, 64); err != nil {
			t.Fatalf("SEMEL_SEED: %v", err)
		}
	}
	t.Logf("SEMEL_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	digest := func() (d semel.Digest) {
		for i := range d {
			d[i] = byte(random.Uint32())
		}
		return d
	}
	for _, rate := range []float64{0.2, 0.01, 0.0005} {
		const n = 50_000
		blocks, probes := blockedSize(n, rate)
		form := bitsForm{blocks: uint64(blocks), probes: probes}
		set := make([]uint64, form.blocks*bitsPerBlock/64)
		var room [maxProbes]uint64
		has := func(d semel.Digest, add bool) bool {
			all := true
			for _, at := range form.positions(&d, &room) {
				at += form.place(&d)
				all = all && set[at/64]&(1<<(at%64)) != 0
				if add {
					set[at/64] |= 1 << (at % 64)
				}
			}
			return all
		}
		for range n {
			has(digest(), true)
		}
		const asked = 200_000
		wrong := 0.0
		for range asked {
			if has(digest(), false) {
				wrong++
			}
		}
		if got := wrong / asked; got < 0.8*rate-2e-4 || got > 1.2*rate+2e-4 {
			t.Errorf("rate %v: %d blocks with %d bits a key have %v", rate, form.blocks, probes, got)
		}
		t.Logf("rate %v: %.1f bits a key, %d probes", rate, blocks*bitsPerBlock/n, probes)
	}
}

func ExampleFilter() {
	ctx := context.Background()
	client, err := NewClient(ctx, "redis://localhost:6379", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	filter, err := NewFilter(ctx, client, &FilterOptions{Capacity: 10_000_000, Window: 24 * time.Hour})
	if err != nil {
		fmt.Println(err)
		return
	}
	keys := []semel.Key{{Scope: "orders", ID: "4711"}}
	maybe := make([]bool, len(keys))
	if err := filter.MayContain(ctx, keys, maybe); err != nil {
		fmt.Println(err)
		return
	}
	if maybe[0] {
		fmt.Println("ask the exact store")
	}
}
