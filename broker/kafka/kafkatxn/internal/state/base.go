package state

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
)

// Base is what states have in common whose changelog keeps a record as long as one of its values
// is the present one. T identifies the values that are written together. A state embeds a Base,
// calls Init, and has Changes, Apply, Commit and Drop of its own.
type Base[T comparable] struct {
	Values
	// Of says what the state is of.
	Of Of
	// Present is how far the partition has come with the open transaction, and Committed
	// without it.
	Present, Committed Progress
	// Sources know how far the sources of the partition's records have come.
	Sources Sources
	// Writer has the records of the open transaction.
	Writer Writer
	// Count is the number of values, and Size their size in the changelog, without those of
	// the open transaction.
	Count int
	Size  int64
	// Last is the record that was read last.
	Last Record

	form  Form
	split Split
	live  liveSet[T]
}

// Of says what a state is of.
type Of struct {
	// Definition is the digest of Text, which says how values are made.
	Definition ID
	Text       string
	// Topic is the input.
	Topic ID
}

// Sources are what a Base stores of them with each transaction.
type Sources interface {
	// Text returns how far they have come, or what was stored if they have come no further.
	Text(stored string) string
	// Forget says that what is stored counts again.
	Forget()
}

// NoSources are those of a partition whose records are of one source.
type NoSources struct{}

func (NoSources) Text(stored string) string { return stored }

func (NoSources) Forget() {}

// Init makes an empty state, whose records have a form and entries that split finds. isAt
// reports whether the changelog has the present values of an item at an offset, and the open
// transaction does not change them.
func (b *Base[T]) Init(form Form, split Split, isAt func(item T, at int64) bool) {
	b.form, b.split, b.Sources = form, split, NoSources{}
	b.live.Slack, b.live.Live = defaultSlack, isAt
}

// Bind says what the state is of, and sets its sources, and its copy on disk, which may be nil.
// slack is how long the changelog may be without being rewritten; 0 is the default.
func (b *Base[T]) Bind(of Of, copy *Disk, sources Sources, slack int64) {
	b.Of, b.Sources = of, sources
	b.SetCopy(copy)
	if slack > 0 {
		b.SetSlack(slack)
	}
}

// SetSlack sets how long the changelog may be without being rewritten.
func (b *Base[T]) SetSlack(bytes int64) { b.live.Slack = bytes }

// Bytes returns the size of the values in the changelog, without those of the open transaction.
func (b *Base[T]) Bytes() int64 { return b.Size }

// Open returns the number of values, without those that the open transaction adds.
func (b *Base[T]) Open() int { return b.Count }

// Watermark returns the watermark, or 0 before the first record.
func (b *Base[T]) Watermark() int64 { return b.Present.Watermark }

// Advance moves the watermark, which never falls.
func (b *Base[T]) Advance(watermark int64) {
	b.Present.Watermark = max(b.Present.Watermark, watermark)
}

// See notes the time of a record. A state without deadlines has no watermark to move.
func (b *Base[T]) See(when, clock int64) bool { return true }

// Quiet moves the watermark of a partition without new records if something is due then. A
// state without deadlines has nothing that becomes due.
func (b *Base[T]) Quiet(read int64) (due bool) { return false }

// StoredSources returns the sources as they are stored.
func (b *Base[T]) StoredSources() string { return b.Present.Sources }

// Begin starts the records of the open transaction, and reports false if it has none. changed
// says that it has changed values.
func (b *Base[T]) Begin(changed bool, most int) bool {
	b.Present.Sources = b.Sources.Text(b.Present.Sources)
	if !changed && b.Present == b.Committed {
		return false
	}
	b.Writer.Begin(b.form, b.Of.Definition, b.Of.Topic, &b.Present, most)
	return true
}

// Rewrite writes the values again that were written longest ago, if the changelog is full: as
// many bytes as the transaction writes anyway.
func (b *Base[T]) Rewrite(write func(item T, at int64) error) error {
	if !b.live.Full(b.Size) {
		return nil
	}
	own := b.Writer.Size()
	for item, at := range b.live.Oldest() {
		if b.Writer.Size() >= 2*own {
			return nil
		}
		if err := write(item, at); err != nil {
			return err
		}
	}
	return nil
}

// Records returns the records of the open transaction.
func (b *Base[T]) Records() (records []*kgo.Record) {
	for _, value := range b.Writer.Records() {
		records = append(records, &kgo.Record{Value: value})
	}
	return records
}

// Put notes that the changelog has the present values of an item at an offset.
func (b *Base[T]) Put(item T, at int64) { b.live.Put(item, at) }

// Settle makes a progress the committed one.
func (b *Base[T]) Settle(p Progress) { b.Present, b.Committed = p, p }

// Forget discards the progress of the open transaction.
func (b *Base[T]) Forget() {
	b.Present = b.Committed
	b.Sources.Forget()
}

// Applied makes the progress of the last record the committed one, and frees the record, whose
// bytes are of a file or a fetch.
func (b *Base[T]) Applied() {
	b.Settle(b.Last.Progress)
	b.Last = Record{}
	b.Sources.Forget()
}

func (b *Base[T]) Stored(at int64, size int) (ends bool) {
	b.live.Stored(at, size)
	return false
}

func (b *Base[T]) Cut() (at int64, ok bool) { return b.live.Cut() }

func (b *Base[T]) Expect(int64) {}

func (b *Base[T]) Barrier(nonce ID) []byte { return Barrier(b.form, nonce, b.Of.Topic) }

func (b *Base[T]) Read(value []byte) (h Header, err error) {
	if b.Last, err = Parse(b.form, value, b.split); err != nil {
		return h, fmt.Errorf("%w: start the version of Semel that wrote it, or use a new group: %w", err, semel.ErrInvalidRequest)
	}
	r := &b.Last
	h = Header{Topic: r.Topic, Len: r.Len(), Barrier: r.Nonce != ID{}, Nonce: r.Nonce}
	if !h.Barrier && r.Definition != b.Of.Definition {
		err = fmt.Errorf("the topic holds a state that was made otherwise than by %q: its keys, sizes, times or values do not fit. Restore the former settings, or use a new group: %w", b.Of.Text, semel.ErrInvalidRequest)
	}
	return h, err
}
