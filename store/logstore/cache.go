package logstore

// cache is the part of the log that is in memory: its end, and chunks that are read
// often.
type cache struct {
	opts     *Options
	resident []residentChunk // in the order in which they came
	free     [][]byte        // chunks for reuse
}

// residentChunk identifies a chunk that is in memory.
type residentChunk struct {
	segment *segment
	index   int
}

// put copies bytes into memory at off.
func (c *cache) put(g *segment, off int, b []byte) {
	for len(b) > 0 {
		n := copy(c.chunk(g, off>>chunkBits)[off&(chunkSize-1):], b)
		b = b[n:]
		off += n
	}
}

// chunk returns a chunk for writing. It creates the chunk if necessary.
func (c *cache) chunk(g *segment, i int) []byte {
	for len(g.chunks) <= i {
		g.chunks = append(g.chunks, nil)
	}
	if g.chunks[i] == nil {
		if n := len(c.free); n > 0 {
			g.chunks[i], c.free = c.free[n-1], c.free[:n-1]
		} else {
			g.chunks[i] = make([]byte, chunkSize)
		}
		c.resident = append(c.resident, residentChunk{g, i})
	}
	return g.chunks[i]
}

// keep adds a chunk that came from the file.
func (c *cache) keep(r residentChunk, b []byte) {
	g, i := r.segment, r.index
	for len(g.chunks) <= i {
		g.chunks = append(g.chunks, nil)
	}
	g.chunks[i] = b
	if g.fromFile == nil {
		g.fromFile = map[int]bool{}
	}
	g.fromFile[i] = true
	c.resident = append(c.resident, r)
}

// trim releases the oldest written chunks above the limit, but not the one in which the
// active segment grows.
func (c *cache) trim(active *segment) {
	n := 0
	for (len(c.resident)-n)*chunkSize > int(c.opts.CacheBytes) {
		r := c.resident[n]
		end := (r.index + 1) << chunkBits
		growing := r.segment == active && r.segment.next < end
		if growing || r.segment.written < min(end, r.segment.next) {
			break
		}
		if len(c.free) < freeChunks {
			c.free = append(c.free, r.segment.chunks[r.index])
		}
		r.segment.chunks[r.index] = nil
		delete(r.segment.fromFile, r.index)
		n++
	}
	if n > 0 {
		c.resident = append(c.resident[:0], c.resident[n:]...)
	}
}

// freeChunks is the number of chunks that are kept for reuse.
const freeChunks = 8

// worthReads is the number of reads that take about as long as to read a chunk.
const worthReads = 64

// countRead notes a read of the file, and reports whether the chunk there is worth its
// memory. The caller holds the lock.
func (c *cache) countRead(r residentChunk) bool {
	g, i := r.segment, r.index
	start, end := i<<chunkBits, (i+1)<<chunkBits
	if whole := end <= g.memFrom || start >= g.memFrom && end <= g.written; !whole || !c.room() {
		return false
	}
	for len(g.reads) <= i {
		g.reads = append(g.reads, 0)
	}
	g.reads[i]++
	return g.reads[i]%worthReads == 0
}

// room reports whether another chunk may be in memory.
func (c *cache) room() bool {
	return (len(c.resident)+1)*chunkSize <= int(c.opts.CacheBytes)
}
