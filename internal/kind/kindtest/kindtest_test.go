package kindtest_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/kind/file"
	"github.com/semel-dev/semel/internal/kind/kindtest"
	"github.com/semel-dev/semel/internal/kind/kindtest/toy"
	"github.com/semel-dev/semel/internal/kind/memory"
	"github.com/semel-dev/semel/internal/kind/redis"
)

// TestMinimalKindsPassTheSuite runs the suite for kinds that implement nothing beyond what they
// must.
func TestMinimalKindsPassTheSuite(t *testing.T) {
	t.Parallel()
	t.Run("source", func(t *testing.T) { kindtest.Source(t, toy.NewSource, kindtest.Case{Least: "{}"}) })
	t.Run("sink", func(t *testing.T) { kindtest.Sink(t, toy.NewSink, kindtest.Case{Least: "{}"}) })
	t.Run("store", func(t *testing.T) { kindtest.Store(t, memory.NewStore, kindtest.Case{Least: "{}"}) })
}

func TestConfigurationsAreReadForOneKind(t *testing.T) {
	t.Parallel()
	if got := kindtest.ReadSource[*file.Source](t, "{ file: { paths: [/in] } }"); !slices.Equal(got.Paths, []string{"/in"}) {
		t.Errorf("%+v", got)
	}
	if got := kindtest.ReadSink[*file.Sink](t, "{ file: { path: /out } }"); got.Path != "/out" {
		t.Errorf("%+v", got)
	}
	if got := kindtest.ReadStore[*redis.Store](t, "{ redis: { url: 'redis://h' } }"); got.URL.Reveal() != "redis://h" {
		t.Errorf("%+v", got)
	}
	kindtest.Refused(t, [][2]string{
		{kindtest.WithStore("{ redis: {} }"), "stores.s.redis: one of url, cluster, sentinel is missing"},
		{kindtest.WithSource("{ file: {} }", ", windwo: 1d"), "pipelines.p.source.file: paths is missing\nunknown field pipelines.p.windwo: did you mean window?"},
	})
	kindtest.Warned(t, [][2]string{
		{kindtest.WithSink("{ stdout: {} }"), ""},
		{kindtest.WithSource("{ file: { paths: [in], from: end } }"), "warning loss pipelines.p.source.file.from: end"},
	})
}

// TestMessagesPassFromASinkToASource delivers lines to a file, and reads them.
func TestMessagesPassFromASinkToASource(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	out := kindtest.Parse(t, kindtest.WithSink("{ file: { path: '"+dir+"/lines' } }"))
	kindtest.Deliver(t, out, "{}", `{"id":1}`)
	in := kindtest.Parse(t, kindtest.WithSource("{ file: { paths: ['"+dir+"/lines'], state: '"+dir+"' } }"))
	want := []string{`{"id":1}`, "{}"} // sorted
	if got := kindtest.Sample(t, in); !slices.Equal(got, want) {
		t.Errorf("the sample is %q, want %q", got, want)
	}
	if got := kindtest.Receive(t, in, 2); !slices.Equal(got, want) {
		t.Errorf("received %q, want %q", got, want)
	}
	lines, err := kindtest.Examine(t, in, in.Pipelines[0].Source)
	if err != nil || !slices.Contains(lines, "fine source.file.paths: "+dir+"/lines: 1 to read") {
		t.Errorf("%q, %v", lines, err)
	}
}

func TestAStoreIsOpenedWithItsLayers(t *testing.T) {
	t.Parallel()
	f := kindtest.Parse(t, "stores: { near: { memory: {} }, far: { embedded: { path: '"+t.TempDir()+"' } }, both: { tiered: [near, far] } }")
	store, err := kindtest.OpenStore(t, f, "both")
	if err != nil {
		t.Fatal(err)
	}
	kindtest.Remembers(t, store, "1")
	if lines, err := kindtest.Examine(t, f, f.Stores[2].Spec); err != nil || !slices.Equal(lines, []string{"fine decides: far"}) {
		t.Errorf("%q, %v", lines, err)
	}
	env := kindtest.StoreEnv(t, f, "near")
	if _, err := env.Store(t.Context(), "near"); err != nil || env.Name != "near" {
		t.Errorf("%s, %v", env.Name, err)
	}
}

// tracer finds a message of each first key.
type tracer struct{}

func (tracer) Trace(_ context.Context, p *config.Pipeline, t *config.Tracing) error {
	t.Found(config.Sighting{Place: "row " + t.IDs()[0], What: "written"})
	t.Unsearched("sink", p.Name, strings.Join(t.IDs(), " "))
	return nil
}

func TestTraceReportsThePlacesThatItSearched(t *testing.T) {
	t.Parallel()
	f := kindtest.Parse(t, kindtest.WithSink("{ stdout: {} }"))
	found, looked := kindtest.Trace(t, f, tracer{}, "1", "2")
	if !slices.Equal(found, []string{"row 1: written"}) || !slices.Equal(looked, []string{"sink of p (1 2): it cannot be searched"}) {
		t.Errorf("found %q, looked at %q", found, looked)
	}
}
