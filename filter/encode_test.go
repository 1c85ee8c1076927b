package filter

import (
	"encoding/binary"
	"errors"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
)

// samples returns a filled filter of each kind, by name, in the forms that
// time brings about.
func samples(t testing.TB) map[string]anyFilter {
	fs := map[string]anyFilter{}
	for _, kind := range kinds {
		f := kind.make(t, 300, testSeed(t), Report)
		start := time.Unix(1_700_000_000, 0)
		for i := range 300 {
			if w, ok := f.(windowed); ok {
				w.Advance(start.Add(time.Duration(i) * 25 * time.Second))
			}
			must(f.Add(id(i)))(t)
		}
		fs[kind.name] = f
		fs["empty "+kind.name] = kind.make(t, 1, testSeed(t), Refuse)
	}
	byCount := must(NewRotating(&RotatingOptions{Capacity: 100, Generations: 4, Seed: testSeed(t)}))(t)
	for i := range 1000 {
		must(byCount.Add(id(i)))(t)
	}
	fs["Rotating by count"] = byCount
	return fs
}

// blank returns a zero filter of the same kind.
func blank(f anyFilter) anyFilter {
	switch f.(type) {
	case *Bloom:
		return new(Bloom)
	case *Blocked:
		return new(Blocked)
	case *Rotating:
		return new(Rotating)
	}
	return new(Table)
}

func TestUnmarshalledFilterIsTheSame(t *testing.T) {
	t.Parallel()
	for name, f := range samples(t) {
		data := must(f.MarshalBinary())(t)
		g := blank(f)
		if err := g.UnmarshalBinary(data); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if f.Len() != g.Len() || f.Fill() != g.Fill() || f.ErrorRate() != g.ErrorRate() ||
			f.Capacity() != g.Capacity() || f.Over() != g.Over() || f.Bytes() != g.Bytes() {
			t.Errorf("%s: it was %d ids at %g, it is %d at %g", name, f.Len(), f.ErrorRate(), g.Len(), g.ErrorRate())
		}
		// Both go on in the same way, over the end of the window too.
		for i := range 1500 {
			if w, ok := f.(windowed); ok {
				now := time.Unix(1_700_007_500, 0).Add(time.Duration(i) * time.Minute)
				w.Advance(now)
				g.(windowed).Advance(now)
			}
			if f.Has(id(i)) != g.Has(id(i)) {
				t.Errorf("%s: id %d: %v before, %v after", name, i, f.Has(id(i)), g.Has(id(i)))
			}
			a, errA := f.Add(id(i / 2))
			b, errB := g.Add(id(i / 2))
			if a != b || !errors.Is(errA, errB) {
				t.Errorf("%s: Add %d: %v, %v before, %v, %v after", name, i, a, errA, b, errB)
			}
		}
		if string(must(f.MarshalBinary())(t)) != string(must(g.MarshalBinary())(t)) {
			t.Errorf("%s: the two went apart", name)
		}
	}
}

func TestEveryDamagedByteIsNoticed(t *testing.T) {
	t.Parallel()
	for name, f := range samples(t) {
		data := must(f.MarshalBinary())(t)
		g := blank(f)
		for i := range data {
			for bit := range 8 {
				data[i] ^= 1 << bit
				if err := g.UnmarshalBinary(data); !errors.Is(err, semel.ErrCorrupt) {
					t.Fatalf("%s: bit %d of byte %d: %v", name, bit, i, err)
				}
				data[i] ^= 1 << bit
			}
			if err := g.UnmarshalBinary(data[:i]); !errors.Is(err, semel.ErrCorrupt) {
				t.Fatalf("%s: cut off at %d: %v", name, i, err)
			}
		}
		if err := g.UnmarshalBinary(append(data, 0)); !errors.Is(err, semel.ErrCorrupt) {
			t.Fatalf("%s: a byte more: %v", name, err)
		}
		if g.Capacity() != 0 || g.Len() != 0 {
			t.Errorf("%s: an error left something behind", name)
		}
	}
}

// resealed returns data whose header is changed and whose checksum is right.
func resealed(t testing.TB, data []byte, change func(h *header)) []byte {
	t.Helper()
	var h header
	if _, err := binary.Decode(data, binary.LittleEndian, &h); err != nil {
		t.Fatal(err)
	}
	change(&h)
	out := must(binary.Append(nil, binary.LittleEndian, h))(t)
	if len(out) != headerBytes {
		t.Fatalf("the header has %d bytes", len(out))
	}
	return seal(append(out, data[headerBytes:len(data)-trailerBytes]...))
}

func TestHostileHeadersAreRefusedByName(t *testing.T) {
	t.Parallel()
	fs := samples(t)
	for _, c := range []struct {
		of, says string
		change   func(h *header)
	}{
		{"Bloom", "does not start with", func(h *header) { h.Magic[0] = 'x' }},
		{"Bloom", "version 2", func(h *header) { h.Version = 2 }},
		{"Bloom", "of a Table", func(h *header) { h.Kind = kindTable }},
		{"Bloom", "of a kind 77", func(h *header) { h.Kind = 77 }},
		{"Bloom", "units of 8 bytes", func(h *header) { h.Units = 1 << 61 }},
		{"Bloom", "units of 8 bytes", func(h *header) { h.Units = math.MaxUint64 }},
		{"Blocked", "units of 64 bytes", func(h *header) { h.Units++ }},
		{"Rotating", "units of 0 bytes", func(h *header) { h.Generations = 0 }},
		{"Rotating", "units of 16320 bytes", func(h *header) { h.Generations = 255 }},
		{"Table", "units of 64 bytes", func(h *header) { h.Units = 1 << 58 }},
		{"Bloom", "capacity 0", func(h *header) { h.Capacity = 0 }},
		{"Bloom", "capacity 18446744073709551615", func(h *header) { h.Capacity = math.MaxUint64 }},
		{"Bloom", "error rate of", func(h *header) { h.Capacity *= 2 }},
		{"Blocked", "error rate of", func(h *header) { h.Capacity *= 2 }},
		{"Blocked", "error rate of +Inf", func(h *header) { h.Capacity = maxCapacity }},
		{"Rotating", "error rate of", func(h *header) { h.Capacity *= 2 }},
		{"Table", "lines do not hold", func(h *header) { h.Capacity *= 2 }},
		{"Bloom", "states NaN", func(h *header) { h.ErrorRate = math.NaN() }},
		{"Blocked", "states 0.9", func(h *header) { h.ErrorRate = 0.9 }},
		{"Rotating", "ErrorRate: -1", func(h *header) { h.ErrorRate = -1 }},
		{"Rotating", "does not use", func(h *header) { h.ErrorRate = 0 }},
		{"Bloom", "error rate of +Inf", func(h *header) { h.Probes = 0 }},
		{"Blocked", "error rate of +Inf", func(h *header) { h.Probes = maxProbes + 1 }},
		{"Rotating", "error rate of +Inf", func(h *header) { h.Probes = 255 }},
		{"Bloom", "policy 2", func(h *header) { h.WhenFull = 2 }},
		{"Bloom", "did not set", func(h *header) { h.Length = 1 << 40 }},
		{"Blocked", "did not set", func(h *header) { h.Length = 1 }},
		{"Rotating", "Window: -1s", func(h *header) { h.Window = -time.Second }},
		{"Table", "Window: 1ns", func(h *header) { h.Window = 1 }},
		{"Rotating", "is not a time", func(h *header) { h.Current = -1 }},
		{"Table", "is not a time", func(h *header) { h.Origin = -1 }},
		{"Table", "has not started", func(h *header) { h.Started = false }},
		{"Table", "no id leaves", func(h *header) { h.Current-- }},
		{"Bloom", "does not use", func(h *header) { h.Window = 1 }},
		{"Bloom", "does not use", func(h *header) { h.Reserved[1] = 1 }},
		{"Table", "does not use", func(h *header) { h.Length = 1 }},
		{"Blocked", "does not use", func(h *header) { h.Started = true }},
	} {
		f := fs[c.of]
		err := blank(f).UnmarshalBinary(resealed(t, must(f.MarshalBinary())(t), c.change))
		if !errors.Is(err, semel.ErrCorrupt) || !strings.Contains(err.Error(), "filter: unmarshal "+c.of+": ") ||
			!strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v; want it to say %q", c.of, err, c.says)
		}
	}
}

func TestHostileLinesAreRefused(t *testing.T) {
	t.Parallel()
	f := samples(t)["empty Table"]
	for name, change := range map[string]func(l *line){
		"no fingerprint":     func(l *line) { l[3] = 5 },
		"of the future":      func(l *line) { l[3] = 1<<6 | 1 },
		"dead":               func(l *line) { l[3] = 1<<6 | 16 },
		"note on empty slot": func(l *line) { l[notes] = shared },
		"note of the future": func(l *line) { l[notes] = passed | 1 },
		"unknown note":       func(l *line) { l[notes] = 1 << 7 },
	} {
		data := must(f.MarshalBinary())(t)
		var l line
		change(&l)
		body := data[:headerBytes]
		for _, word := range l {
			body = binary.LittleEndian.AppendUint32(body, word)
		}
		if err := new(Table).UnmarshalBinary(seal(body)); !errors.Is(err, semel.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The memory taken follows from the input's length and not from what it says.
func TestHugeClaimsTakeNoMemory(t *testing.T) {
	// Not parallel: the allocations counted are those of the whole process.
	for name, f := range samples(t) {
		data := must(f.MarshalBinary())(t)
		hostile := resealed(t, data, func(h *header) { h.Units, h.Capacity = 1<<50, maxCapacity })
		g := blank(f)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range 10 {
			if g.UnmarshalBinary(hostile) == nil {
				t.Fatalf("%s: accepted", name)
			}
		}
		runtime.ReadMemStats(&after)
		if bytes := after.TotalAlloc - before.TotalAlloc; bytes > 1<<20 {
			t.Errorf("%s: 10 calls took %d bytes", name, bytes)
		}
	}
}

func FuzzUnmarshal(f *testing.F) {
	for _, sample := range samples(f) {
		f.Add(must(sample.MarshalBinary())(f))
	}
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, kind := range kinds {
			try(t, kind.zero(), data)
			// Past the checksum, which the fuzzer cannot compute.
			if n := len(data) - trailerBytes; n > headerBytes {
				try(t, kind.zero(), seal(data[:n:n]))
			}
		}
	})
}

// try uses a filter if it accepts the data: it must answer, and be accepted
// again in the form in which it writes itself.
func try(t *testing.T, f anyFilter, data []byte) {
	if err := f.UnmarshalBinary(data); err != nil {
		if !errors.Is(err, semel.ErrCorrupt) {
			t.Fatalf("%v is not ErrCorrupt", err)
		}
		return
	}
	if f.Bytes() > 4*len(data)+1024 {
		t.Fatalf("%d bytes of input took %d", len(data), f.Bytes())
	}
	written := must(f.MarshalBinary())(t)
	if err := f.UnmarshalBinary(written); err != nil {
		t.Fatalf("not accepted again: %v", err)
	}
	if again := must(f.MarshalBinary())(t); string(again) != string(written) {
		t.Fatal("the serialised form changes")
	}
	if p := f.ErrorRate(); p < 0 || p > 1 || math.IsNaN(p) {
		t.Fatalf("error rate %g", p)
	}
	for i := range 50 {
		if w, ok := f.(windowed); ok {
			w.Advance(time.Unix(0, int64(i)<<57))
		}
		if _, err := f.Add(id(i)); err == nil && !f.Has(id(i)) {
			t.Fatalf("id %d is not seen", i)
		}
		if table, ok := f.(*Table); ok {
			table.Delete(id(i))
		}
	}
	if f.Len() < 0 || f.Fill() < 0 || f.Fill() > 1 {
		t.Fatalf("%d ids, fill %g", f.Len(), f.Fill())
	}
}
