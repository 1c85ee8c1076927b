package semel

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
