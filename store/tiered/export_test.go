package tiered

// Defaults, for tests that wait for them.
const (
	DefaultMaxAge  = defaultMaxAge
	DefaultTimeout = defaultTimeout
	DefaultRetry   = defaultRetry
)
