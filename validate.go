package semel

import (
	"fmt"
	"time"
)

// MaxOriginBytes is the maximum length in bytes of a [ClaimRequest].Origin.
const MaxOriginBytes = 256

// Validate returns an error that wraps ErrInvalidKey or ErrInvalidRequest if the
// request is invalid. Every store refuses it with this error.
func (r *ClaimRequest) Validate() error {
	switch err := r.Key.Validate(); {
	case err != nil:
		return err
	case r.Window <= 0:
		return notAbove0("window", r.Window)
	case r.Lease <= 0 && !r.Done:
		return notAbove0("lease", r.Lease)
	case len(r.Owner.Name) > MaxKeyBytes:
		return fmt.Errorf("semel: the owner's name has %d bytes, more than %d: %w", len(r.Owner.Name), MaxKeyBytes, ErrInvalidRequest)
	case len(r.Origin) > MaxOriginBytes:
		return fmt.Errorf("semel: the origin has %d bytes, more than %d: %w", len(r.Origin), MaxOriginBytes, ErrInvalidRequest)
	}
	return nil
}

// Late reports whether the message is older than the window at the store time
// now. It matters only if the key has no record.
func (r *ClaimRequest) Late(now time.Time) bool {
	return !r.Time.IsZero() && r.Window != Forever && now.Sub(r.Time) > r.Window
}

// Validate returns an error that wraps ErrInvalidKey or ErrInvalidRequest if the
// request is invalid. If maxResult is above 0 and the result has more bytes, the
// error wraps ErrResultTooLarge.
func (r *CompleteRequest) Validate(maxResult int64) error {
	switch err := r.Key.Validate(); {
	case err != nil:
		return err
	case r.Window <= 0:
		return notAbove0("window", r.Window)
	case r.Result.Kind > NotKept:
		return fmt.Errorf("semel: %d is no kind of result: %w", r.Result.Kind, ErrInvalidRequest)
	case maxResult > 0 && int64(len(r.Result.Data)) > maxResult:
		return fmt.Errorf("semel: the result of %s has %d bytes, the store keeps %d: %w", r.Key, len(r.Result.Data), maxResult, ErrResultTooLarge)
	}
	return nil
}

// Validate returns an error that wraps ErrInvalidKey, ErrInvalidRequest or
// ErrResultTooLarge if the request is invalid. maxResult is as for [CompleteRequest].
func (r *ResolveRequest) Validate(maxResult int64) error {
	switch r.As {
	case Done:
		return (&CompleteRequest{Key: r.Key, Result: r.Result, Window: r.Window}).Validate(maxResult)
	case Absent:
		return r.Key.Validate()
	}
	return fmt.Errorf("semel: a key can be resolved as done or absent, not as %s: %w", r.As, ErrInvalidRequest)
}

// Validate returns an error that wraps ErrInvalidKey if the request is invalid.
func (r *ReleaseRequest) Validate() error { return r.Key.Validate() }

// Validate returns an error that wraps ErrInvalidKey or ErrInvalidRequest if the
// request is invalid.
func (r *ExtendRequest) Validate() error {
	switch err := r.Key.Validate(); {
	case err != nil:
		return err
	case r.Lease <= 0:
		return notAbove0("lease", r.Lease)
	}
	return nil
}

func notAbove0(what string, d time.Duration) error {
	return fmt.Errorf("semel: a %s of %v is not above 0: %w", what, d, ErrInvalidRequest)
}
