package key

import "encoding/binary"

// The documents of one file or topic mostly have the same members in the same
// order. So the finder remembers, for each member name that it scanned, which
// name came next the last time, and first compares the text with that one: a
// name that is right there needs no scan, no look for the place and no hash.
// What differs is scanned, and remembered in its turn.

const (
	memoWords = 4
	memoBytes = memoWords * wordBytes
	memoSize  = 128
	// memoProbes is in how many slots, from the one that its hash says, a name
	// may be.
	memoProbes = 4
)

// memo is a name that was scanned. Slot 0 of the table stands for the document's
// beginning.
type memo struct {
	// text is what was scanned, from the end of the '{' or ',' before the name
	// to the beginning of the value, white space included; mask tells its bytes
	// from what is behind it.
	text, mask [memoWords]uint64
	size       int
	// hash is the name's print.
	hash uint64
	// at is the object's place, to the member's.
	at, to int32
	// renews says that paths lead on from the member: what an earlier one of
	// its name gave them must be forgotten.
	renews bool
	// next is the name that came next the last time.
	next *memo
}

// matches reports whether the next two words of the document, in an object at a
// place, begin like the text of the memo.
func (m *memo) matches(w0, w1 uint64, at int32) bool {
	return (w0^m.text[0])&m.mask[0]|(w1^m.text[1])&m.mask[1] == 0 && m.at == at
}

// endMatches is matches for what is behind the first two words.
func (m *memo) endMatches(doc []byte, i int) bool {
	return m.size <= 2*wordBytes || i+memoBytes <= len(doc) &&
		(binary.LittleEndian.Uint64(doc[i+16:])^m.text[2])&m.mask[2]|
			(binary.LittleEndian.Uint64(doc[i+24:])^m.text[3])&m.mask[3] == 0
}

// remember puts the text doc[i:end] into the table, as what came after the
// name of last, and returns its memo. A text that is too long is forgotten with
// the next one.
func (f *Finder) remember(last *memo, doc []byte, i, end int, at, to int32, hash uint64) *memo {
	m := memo{size: end - i, hash: hash, at: at, to: to, renews: len(f.places[to].below) > len(f.places[to].here)}
	if m.size > memoBytes {
		m.next = last.next
		f.unkept = m
		return &f.unkept
	}
	var text [memoBytes]byte
	copy(text[:], doc[i:end])
	for w := range memoWords {
		m.mask[w] = lowBytes(m.size - w*wordBytes)
		m.text[w] = binary.LittleEndian.Uint64(text[w*wordBytes:])
	}
	slot := f.slot(&m)
	if slot.text != m.text || slot.size != m.size || slot.at != at {
		m.next = slot.next
		*slot = m
	}
	last.next = slot
	return slot
}

// slot returns the memo with this text, or one to put it in.
func (f *Finder) slot(m *memo) *memo {
	home := mum(m.text[0]^m.text[1]<<1, f.mixer.word^uint64(m.at))
	for probe := range uint64(memoProbes) {
		slot := &f.memos[1+(home+probe)%(memoSize-1)]
		if slot.size == 0 || slot.text == m.text && slot.at == m.at {
			return slot
		}
	}
	return &f.memos[1+home%(memoSize-1)]
}

// lowBytes returns a mask of the n lowest bytes of a word.
func lowBytes(n int) uint64 {
	switch {
	case n <= 0:
		return 0
	case n >= wordBytes:
		return ^uint64(0)
	}
	return 1<<(8*n) - 1
}
