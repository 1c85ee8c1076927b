package kafkaio

import (
	"errors"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
)

// digest finds the keys of records.
func (w *worker) digest(p *part, records []*kgo.Record) error {
	st := p.slot.state
	w.digests, w.states, w.offsets = w.digests[:0], w.states[:0], w.offsets[:0]
	for _, r := range records {
		w.offsets = append(w.offsets, r.Offset)
		if w.opts.Repartition != nil {
			w.origins.unwrap(r)
		}
		w.bytes += int64(len(r.Key) + len(r.Value))
		fill(&w.message, r)
		var err error
		w.id, err = w.reader.AppendID(w.id[:0], &w.message)
		known := keyKnown
		var d semel.Digest
		if err != nil || len(w.id) == 0 || len(w.id) > semel.MaxKeyBytes {
			if known, d, err = w.withoutKey(st, r, err); err != nil {
				return err
			}
		} else {
			d = st.scoped.Bytes(w.id)
		}
		st.committed.Prefetch(&d)
		w.digests = append(w.digests, d)
		w.states = append(w.states, known)
	}
	return nil
}

// withoutKey says what becomes of a record whose key is missing or cannot be
// read.
func (w *worker) withoutKey(st *state, r *kgo.Record, cause error) (keyState, semel.Digest, error) {
	switch w.opts.OnMissing {
	case pipeline.MissingPass:
		return keyPass, semel.Digest{}, nil
	case pipeline.MissingHash:
		if w.id = contentID(w.id[:0], r.Value); len(w.id) == 0 {
			return keyMissing, semel.Digest{}, nil
		}
		return keyKnown, st.scoped.Bytes(w.id), nil
	case pipeline.MissingStop:
		if cause == nil {
			cause = key.ErrMissing
		}
		return 0, semel.Digest{}, toldToStop(r, pipeline.ReasonKeyMissing, cause)
	default:
		return keyMissing, semel.Digest{}, nil
	}
}

// contentID appends the id of a record that is its content.
func contentID(dst, value []byte) []byte {
	if id, err := key.Content(value); err == nil {
		return append(dst, id...)
	}
	return key.AppendLine(dst, value)
}

// keyOf returns the key of the record whose message w.message is. It reports false
// if that has none.
func (w *worker) keyOf() (semel.Key, bool) {
	id, err := w.reader.AppendID(w.id[:0], &w.message)
	if (err != nil || len(id) == 0 || len(id) > semel.MaxKeyBytes) && w.opts.OnMissing == pipeline.MissingHash {
		id, err = contentID(w.id[:0], w.message.Body), nil
	}
	if err != nil || len(id) == 0 || len(id) > semel.MaxKeyBytes {
		return semel.Key{}, false
	}
	return semel.Key{Scope: w.opts.Scope, ID: string(id)}, true
}

// unkeyed says why a record has no key.
func (w *worker) unkeyed(r *kgo.Record) (reason pipeline.Reason, err error) {
	fill(&w.message, r)
	id, err := w.reader.AppendID(w.id[:0], &w.message)
	switch {
	case errors.Is(err, key.ErrMissing):
		return pipeline.ReasonKeyMissing, err
	case err == nil && len(id) == 0:
		return pipeline.ReasonKeyMissing, key.ErrMissing
	case err == nil:
		err = semel.Key{Scope: w.opts.Scope, ID: string(id)}.Validate()
	}
	return pipeline.ReasonKeyInvalid, err
}
