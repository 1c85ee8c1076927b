package semel

import (
	"context"
	"encoding/json"
	"fmt"
)

// Codec converts typed results to the bytes that a store keeps, and back. It must
// be safe for concurrent use. Encode must not return nil bytes for a value.
type Codec[T any] interface {
	Encode(value T) ([]byte, error)
	Decode(data []byte) (T, error)
}

// JSON is a Codec that uses encoding/json.
type JSON[T any] struct{}

// Encode implements Codec.
func (JSON[T]) Encode(value T) ([]byte, error) { return json.Marshal(value) }

// Decode implements Codec.
func (JSON[T]) Decode(data []byte) (T, error) {
	var value T
	err := json.Unmarshal(data, &value)
	return value, err
}

// Do runs an effect with a typed result under a guard. A duplicate gets the value that the
// first delivery returned, decoded from JSON, and duplicate is true. Within fn, [ClaimOf]
// returns the claim. [Guard.Do] says when it blocks and which errors it returns; [DoCodec]
// adds the codec errors.
func Do[T any](ctx context.Context, g *Guard, key Key, fn func(ctx context.Context) (T, error)) (value T, duplicate bool, err error) {
	return DoCodec(ctx, g, Call{Key: key}, JSON[T]{}, fn)
}

// DoCodec is Do with call options and a codec. If the codec cannot encode the
// value, the effect is complete nevertheless. DoCodec then returns the value with
// an error that wraps ErrResultNotKept, and duplicates get that error.
func DoCodec[T any](ctx context.Context, g *Guard, call Call, codec Codec[T], fn func(ctx context.Context) (T, error)) (value T, duplicate bool, err error) {
	if fn == nil {
		return value, false, errNoEffect
	}
	s, err := g.claim(ctx, call)
	if err != nil {
		return value, false, err
	}
	var encodeErr error
	if t := &s.task; t.Decision == Fresh {
		s.run(ctx, s.list[:], func(ctx context.Context) {
			if value, t.Err = fn(withClaim(ctx, t.Claim)); t.Err != nil {
				return
			}
			data, err := codec.Encode(value)
			if err != nil {
				encodeErr = fmt.Errorf("semel: encode the result of %s: %w: %w", call.Key, ErrResultNotKept, err)
				t.Result = Result{Kind: NotKept}
				return
			}
			t.Result = Result{Kind: Value, Data: data}
		})
	}
	out, err := s.end()
	duplicate = out.Decision == Duplicate
	switch {
	case err != nil:
		return value, duplicate, err
	case !duplicate:
		return value, false, encodeErr
	case out.Result.Kind == NoResult:
		return value, true, nil // another handler completed the key without a result
	}
	if value, err = codec.Decode(out.Result.Data); err != nil {
		return value, true, fmt.Errorf("semel: decode the stored result of %s: %w", call.Key, err)
	}
	return value, true, nil
}
