package file

// InParts returns options of a session that decides a batch in parts of n items.
func InParts(o SessionOptions, n int) *SessionOptions { o.part = n; return &o }
