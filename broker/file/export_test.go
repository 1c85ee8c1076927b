package file

// InParts returns options of a session that decides a batch in parts of n items.
func InParts(o SessionOptions, n int) *SessionOptions { o.part = n; return &o }

// InChunks returns options of a source that reads n bytes at a time.
func InChunks(o SourceOptions, n int) *SourceOptions { o.chunk = n; return &o }
