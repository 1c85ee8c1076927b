package semel

import "context"

// Ability returns the optional interface T, such as [Looker] or [Resolver], of a
// store or of the store that it wraps. A wrapper that does not change what T sees
// has a method Unwrap() Store instead of forwarding T.
func Ability[T any](s Store) (T, bool) {
	for {
		if a, ok := s.(T); ok {
			return a, true
		}
		w, ok := s.(interface{ Unwrap() Store })
		if !ok {
			var none T
			return none, false
		}
		s = w.Unwrap()
	}
}

// Readier is implemented by a store, source or sink that can check whether it
// could do its work now.
type Readier interface {
	// Ready returns nil, or an error that says what is missing. It may ask a
	// server. It blocks until the server has answered or ctx ends. It is safe for
	// concurrent use at any time. Probes show the error's text, which must not
	// contain anything of a message.
	Ready(ctx context.Context) error
}
