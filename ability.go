package semel

import "context"

// Ability finds an ability such as [Looker] or [Resolver] in a store, or in the
// store that a wrapper wraps. A wrapper that does not change what the ability
// sees has a method Unwrap() Store instead of forwarding each one.
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

// Readier is the ability of a store, source or sink to say whether it could do its
// work now.
type Readier interface {
	// Ready returns nil, or an error that says what is missing. It may ask a server,
	// and blocks until it has answered or ctx ends. It may be called at any time, by
	// many goroutines. Probes show the error's text, which must have nothing of a
	// message.
	Ready(ctx context.Context) error
}
