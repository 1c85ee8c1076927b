package brokertest

import (
	"context"
	"errors"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
)

// position is what identifies a message in its source. A key also has the content, which is
// left out here, because it would hide that two messages have one position.
type position struct {
	identity  string
	partition int32
	offset    int64
}

func positionOf(it *pipeline.Item) position {
	o := &it.Message.Origin
	return position{o.Identity, o.Partition, o.Offset}
}

// positions compares the positions of messages. Two deliveries of a message have equal positions.
// Two messages differ, even if they have the same place and content and the place was made again
// in between.
func (e *sourceEnv) positions() {
	ctx, cancel := e.context()
	defer cancel()
	var list []Numbered
	for i := range 12 {
		partition := i % e.place.Partitions
		if e.harness.Blocking {
			partition = i
		}
		list = append(list, newNumbered("same", partition, i, 0))
	}
	read := func(source pipeline.Source) (items []*pipeline.Item, of map[string]position) {
		e.Helper()
		of = map[string]position{}
		for ctx.Err() == nil && len(of) < len(list) {
			some, err := source.Read(ctx)
			if err != nil {
				e.Fatalf("read: %v", err)
			}
			for _, it := range some {
				_, err := key.AppendPosition(nil, &it.Message)
				if source.Traits().Positions != (err == nil) || err != nil && !errors.Is(err, key.ErrMissing) {
					e.Fatalf("Positions is %v, and a message of %+v gives %v", source.Traits().Positions, it.Message.Origin, err)
				}
				of[string(it.Message.Body)] = positionOf(it)
			}
			items = append(items, some...)
		}
		if len(of) < len(list) {
			e.Fatalf("%d of %d messages came", len(of), len(list))
		}
		return items, of
	}
	open := func() pipeline.Source {
		e.Helper()
		return e.open(ctx).Source
	}
	closed := func(source pipeline.Source) {
		e.Helper()
		if err := source.Close(ctx); err != nil {
			e.Errorf("close: %v", err)
		}
	}

	source := open()
	wait := e.produce(ctx, list)
	items, first := read(source)
	wait()
	e.takesPositions(source)
	if !source.Traits().Positions {
		if err := source.Ack(ctx, items); err != nil {
			e.Errorf("acknowledge: %v", err)
		}
		closed(source)
		return
	}
	if err := source.Return(ctx, items, time.Millisecond); err != nil {
		e.Errorf("return: %v", err)
	}
	if !source.Traits().CanReturn {
		closed(source)
		source = open()
	}
	_, second := read(source)
	closed(source)
	if e.place.Again == nil {
		e.Fatal("the source has positions, and the harness cannot make its place again: set Again")
	}
	if err := e.place.Again(ctx); err != nil {
		e.Fatalf("make the place again: %v", err)
	}
	source = open()
	wait = e.produce(ctx, list)
	_, third := read(source)
	wait()
	closed(source)

	taken := map[position]string{}
	for body, at := range first {
		if other, ok := taken[at]; ok {
			e.Errorf("two messages have one position: %s and %s", other, body)
		}
		taken[at] = body
		if second[body] != at {
			e.Errorf("two deliveries of %s have different positions: %+v and %+v", body, at, second[body])
		}
		if third[body] == at {
			e.Errorf("the place was made again, and %s has the position %+v as before: it would be dropped as a duplicate", body, at)
		}
	}
}

// takesPositions checks that a pipeline takes keys made of positions only from a source that
// has some.
func (e *sourceEnv) takesPositions(source pipeline.Source) {
	e.Helper()
	session, err := pipeline.NewTwoPhase(e.store, pipeline.NewHandler(func(context.Context, pipeline.Delivery) (semel.Result, error) { return semel.Result{}, nil }), nil)
	if err != nil {
		e.Fatal(err)
	}
	for text, missing := range map[string]pipeline.Missing{".id": pipeline.MissingPass, "offset": pipeline.MissingDrop, "delivery-id": pipeline.MissingDrop} {
		rule, err := key.ParseRule(text)
		if unstable, ok := errors.AsType[*key.UnstableError](err); ok {
			rule, err = unstable.Insist(), nil
		}
		if err != nil {
			e.Fatal(err)
		}
		opts := pipeline.Options{OnMissing: missing}
		e.complete(&opts)
		opts.Key = rule
		if _, err := pipeline.NewRunner(source, session, &opts); errors.Is(err, semel.ErrInvalidRequest) == source.Traits().Positions {
			e.Errorf("Positions is %v, and a pipeline with the key %s and OnMissing %d: %v", source.Traits().Positions, text, missing, err)
		}
	}
}
