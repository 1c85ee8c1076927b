package redisstore

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/digest"
)

// filterSettings is what the users of one filter must agree on, as it is kept
// on the server. The secret keeps strangers from choosing keys that meet.
type filterSettings struct {
	Version  int
	Form     FilterForm
	Capacity int64
	Rate     float64
	Window   time.Duration
	Slices   int
	Secret   string
}

func (f *Filter) name(what string) string { return f.opts.Prefix + "{filter}:" + what }

func (f *Filter) sliceKey(slice int64) string { return f.name(strconv.FormatInt(slice, 10)) }

// open agrees with the other users of the filter and checks what is there.
func (f *Filter) open(ctx context.Context) error {
	best, mine, err := f.wanted(ctx)
	if err != nil {
		return err
	}
	kept, err := f.agree(ctx, mine)
	if err != nil {
		return err
	}
	return f.use(ctx, best, mine, kept)
}

// wanted returns the best form that the server has, and the settings that this
// user would write.
func (f *Filter) wanted(ctx context.Context) (best FilterForm, mine filterSettings, err error) {
	if best, err = f.detect(ctx); err != nil {
		return best, mine, err
	}
	form := cmp.Or(f.opts.Form, best)
	if form == FilterModule && best != FilterModule {
		return best, mine, fmt.Errorf("redisstore: FilterOptions.Form: the server has no BF commands: %w", semel.ErrInvalidRequest)
	}
	secret := digest.NewSecret()
	mine = filterSettings{1, form, f.opts.Capacity, f.opts.Rate, f.opts.Window, f.opts.Slices, hex.EncodeToString(secret[:])}
	return best, mine, nil
}

// use takes the settings that count over, unless they contradict.
func (f *Filter) use(ctx context.Context, best FilterForm, mine, kept filterSettings) (err error) {
	if f.opts.Form == FilterAuto {
		mine.Form = kept.Form
	}
	mine.Secret = kept.Secret
	if kept != mine {
		mine.Secret, kept.Secret = "", ""
		return fmt.Errorf("redisstore: filter: it was made with other options, %+v and not %+v: %w", kept, mine, semel.ErrInvalidRequest)
	}
	var secret digest.Secret
	if n, err := hex.Decode(secret[:], []byte(kept.Secret)); err != nil || n != len(secret) {
		return fmt.Errorf("redisstore: filter: its settings have no secret: %w", semel.ErrCorrupt)
	}
	if kept.Form == FilterModule && best != FilterModule {
		return fmt.Errorf("redisstore: filter: it was made by BF commands, which the server no longer has: %w", semel.ErrCorrupt)
	}
	f.hasher = digest.New(secret)
	f.opts.Form = kept.Form
	if f.form, err = f.opts.newForm(); err != nil {
		return err
	}
	now, err := f.askTime(ctx)
	if err != nil {
		return err
	}
	for slice := now - int64(f.opts.Slices); slice <= now; slice++ {
		if err := f.form.check(ctx, f.client, f.sliceKey(slice)); err != nil {
			return err
		}
	}
	return nil
}

// detect finds out whether the server has the commands of a module. A server
// without them says that the command is unknown; any answer else is a yes.
func (f *Filter) detect(ctx context.Context) (FilterForm, error) {
	err := f.client.Do(ctx, f.client.B().BfExists().Key(f.name("settings-none")).Item("").Build()).Error()
	if answer, ok := rueidis.IsRedisErr(err); ok && strings.Contains(answer.Error(), "unknown command") {
		return FilterBits, nil
	}
	if err != nil {
		return "", storeError("filter", err)
	}
	return FilterModule, nil
}

// agree writes the settings if there are none and returns those that count.
func (f *Filter) agree(ctx context.Context, mine filterSettings) (kept filterSettings, err error) {
	text, err := json.Marshal(mine)
	if err != nil {
		return kept, fmt.Errorf("redisstore: filter: settings: %w", err)
	}
	key, b := f.name("settings"), f.client.B()
	results := f.client.DoMulti(ctx, b.Set().Key(key).Value(string(text)).Nx().Build(), b.Get().Key(key).Build())
	if err := results[0].Error(); err != nil && !rueidis.IsRedisNil(err) {
		return kept, storeError("filter", err)
	}
	return readSettings(results[1])
}

func readSettings(result rueidis.RedisResult) (kept filterSettings, err error) {
	text, err := result.AsBytes()
	if err != nil {
		return kept, storeError("filter", err)
	}
	if err := json.Unmarshal(text, &kept); err != nil || kept.Version != 1 {
		return kept, fmt.Errorf("redisstore: filter: its settings are not those of a filter, or of a later version: %w", semel.ErrCorrupt)
	}
	return kept, nil
}

func (o *FilterOptions) newForm() (filterForm, error) {
	switch o.Form {
	case FilterModule:
		return newModuleForm(o), nil
	case FilterBits:
		return newBitsForm(o)
	}
	return nil, fmt.Errorf("redisstore: filter: its form %q is of a later version: %w", o.Form, semel.ErrCorrupt)
}

// sliceLength is how long one slice is.
func (o *FilterOptions) sliceLength() time.Duration { return o.Window / time.Duration(o.Slices) }

// guess returns the slice of the server's time, as far as is known.
func (f *Filter) guess() int64 {
	return (int64(time.Since(f.base)) + f.offset.Load()) / int64(f.opts.sliceLength())
}

// askTime asks for the server's time and returns its slice.
func (f *Filter) askTime(ctx context.Context) (int64, error) {
	return f.readTime(f.client.Do(ctx, f.client.B().Time().Build()))
}

func (f *Filter) readTime(result rueidis.RedisResult) (int64, error) {
	parts, err := result.AsIntSlice()
	switch {
	case err != nil:
		return 0, storeError("filter", err)
	case len(parts) != 2:
		return 0, fmt.Errorf("redisstore: filter: TIME has %d parts: %w", len(parts), semel.ErrCorrupt)
	}
	now := parts[0]*int64(time.Second) + parts[1]*int64(time.Microsecond)
	f.offset.Store(now - int64(time.Since(f.base)))
	return now / int64(f.opts.sliceLength()), nil
}

// purpose says what a round is for.
type purpose struct{ look, add bool }

// mostCommands is the most commands of one round. The client takes a connection
// of its own for 2000 and more.
const mostCommands = 1500

// inParts makes rounds of bounded length. It returns for how many keys, from
// the first, the answer is complete.
func (f *Filter) inParts(ctx context.Context, keys []semel.Key, seen []bool, why purpose) (int, error) {
	for i := range keys {
		if err := keys[i].Validate(); err != nil {
			return 0, err
		}
	}
	clear(seen)
	memo := digest.Memo{Hasher: f.hasher}
	part := mostCommands / (f.opts.Slices + 1)
	digests := make([]semel.Digest, 0, min(part, len(keys)))
	for done := 0; done < len(keys); done += len(digests) {
		end := min(len(keys), done+part)
		digests = digests[:0]
		for _, k := range keys[done:end] {
			digests = append(digests, memo.Key(k))
		}
		n, err := f.inTime(ctx, digests, seen[done:end], why)
		if err != nil {
			return done + n, err
		}
	}
	return len(keys), nil
}

// inTime makes one round, and another one if it turns out that the server's
// time was in another slice than was thought. The answer of a TestAndAdd is
// that of the first: the keys that the second round would find are its own.
func (f *Filter) inTime(ctx context.Context, digests []semel.Digest, seen []bool, why purpose) (int, error) {
	slice := f.guess()
	actual, n, err := f.round(ctx, slice, digests, seen, why)
	for err == nil && actual != slice {
		slice = actual
		into := seen
		if why.add {
			why.look, into = false, make([]bool, len(seen))
		}
		actual, _, err = f.round(ctx, slice, digests, into, why)
	}
	return n, err
}

// round makes one round trip. Who adds to a slice looks into older ones only, so
// that of two callers at a boundary at least one is told that a key is new.
func (f *Filter) round(ctx context.Context, slice int64, digests []semel.Digest, seen []bool, why purpose) (actual int64, n int, err error) {
	b := f.client.B()
	commands := append(make([]rueidis.Completed, 0, mostCommands), b.Time().Build())
	newest := slice
	if why.add {
		until := time.Unix(0, (slice+int64(f.opts.Slices)+1)*int64(f.opts.sliceLength()))
		adding, err := f.form.add(b, f.sliceKey(slice), digests, until)
		if err != nil {
			return 0, 0, err
		}
		commands = append(commands, adding...)
		newest--
	}
	ends := []int{len(commands)}
	if why.look {
		for older := slice - int64(f.opts.Slices); older <= newest; older++ {
			commands = append(commands, f.form.look(b, f.sliceKey(older), digests)...)
			ends = append(ends, len(commands))
		}
	}
	results := f.client.DoMulti(ctx, commands...)
	if actual, err = f.readTime(results[0]); err != nil {
		return 0, 0, err
	}
	for i := 1; i < len(ends); i++ {
		if err := f.form.looked(results[ends[i-1]:ends[i]], digests, seen); err != nil {
			return 0, 0, err
		}
	}
	if why.add {
		n, err = f.form.added(f.sliceKey(slice), results[1:ends[0]], seen)
		return actual, n, err
	}
	return actual, len(digests), nil
}
