package semel

// As returns the optional interface T, such as [Inspector] or [Resolver], of a
// store or of the store that it wraps. A wrapper has a method Unwrap() Store, and
// implements each T that it changes. T may also be the type of a store.
func As[T any](s Store) (T, bool) {
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
