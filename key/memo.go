package key

import "encoding/binary"

// The documents of one file or topic mostly have the same members in the same
// order. So the finder remembers, for each member name that it scanned, which
// name came next the last time, and first compares the text with that one: a
// name that is right there needs no scan, no look for its place and no hash.
// A name that is not is scanned; if it is known from elsewhere it is at least
// not looked for and hashed again.

const (
	memoWords = 4
	memoBytes = memoWords * wordBytes
	// memoSlots is a power of two.
	memoSlots = 128
	// memoProbes is in how many slots, from the one that its hash says, a name
	// may be.
	memoProbes = 4
)

// memo is a name that was scanned.
type memo struct {
	// text is what was scanned, from the end of the '{' or ',' before the name
	// to after the colon, white space included; mask tells its bytes from what
	// is behind it.
	text, mask [memoWords]uint64
	size       int
	// hash is the name's print.
	hash uint64
	// next is the name that came next the last time.
	next *memo
	// at is the object's place, to the member's.
	at, to int32
	// renews says that paths lead on from the member: what an earlier one of
	// its name gave them must be forgotten.
	renews bool
}

// matches reports whether the next two words of the document, in an object at
// a place, begin like the text of the memo.
func (m *memo) matches(w0, w1 uint64, at int32) bool {
	return (w0^m.text[0])&m.mask[0]|(w1^m.text[1])&m.mask[1] == 0 && m.at == at
}

// endMatches is matches for what is behind the first two words.
func (m *memo) endMatches(doc []byte, i int) bool {
	return m.size <= 2*wordBytes || i+memoBytes <= len(doc) &&
		(binary.LittleEndian.Uint64(doc[i+16:])^m.text[2])&m.mask[2]|
			(binary.LittleEndian.Uint64(doc[i+24:])^m.text[3])&m.mask[3] == 0
}

// recall returns the memo of the text that begins at i, whose name goes from
// its quote to nameEnd. If it is not known it is nil, and home is where to put
// it: below 0 if it cannot be remembered, because it is too long or too close
// to the document's end.
func (f *Finder) recall(doc []byte, i, quote, nameEnd int, at int32) (m *memo, home int) {
	if i+2*wordBytes > len(doc) || quote+2*wordBytes > len(doc) {
		return nil, -1
	}
	n := nameEnd - quote
	h := binary.LittleEndian.Uint64(doc[quote:])&lowBytes(n)*f.mixer.text ^
		binary.LittleEndian.Uint64(doc[quote+8:])&lowBytes(n-wordBytes)*f.mixer.number
	home = int((h ^ uint64(at)*f.mixer.word) >> 57)
	w0, w1 := binary.LittleEndian.Uint64(doc[i:]), binary.LittleEndian.Uint64(doc[i+8:])
	for probe := range memoProbes {
		m = &f.memos[(home+probe)%memoSlots]
		switch {
		case m.size == 0:
			return nil, (home + probe) % memoSlots
		case m.matches(w0, w1, at) && m.endMatches(doc, i):
			return m, home
		}
	}
	return nil, home
}

// remember puts the text doc[i:end], the name's place and its hash into a slot
// that recall gave, and returns the memo. If there is no slot, or the text is
// too long for it, the memo is forgotten with the next name.
func (f *Finder) remember(last *memo, slot int, doc []byte, i, end int, at, to int32, hash uint64) *memo {
	m := &f.unkept
	if slot >= 0 && end-i <= memoBytes {
		m = &f.memos[slot]
		var text [memoBytes]byte
		copy(text[:], doc[i:end])
		for w := range memoWords {
			m.mask[w] = lowBytes(end - i - w*wordBytes)
			m.text[w] = binary.LittleEndian.Uint64(text[w*wordBytes:])
		}
		m.at, last.next = at, m
	} else {
		m.next = last.next
	}
	m.size, m.hash, m.to = end-i, hash, to
	m.renews = len(f.places[to].below) > len(f.places[to].here)
	return m
}

// lowBytes returns a mask of the n lowest bytes of a word.
func lowBytes(n int) uint64 {
	if n <= 0 {
		return 0
	}
	return ^uint64(0) >> (wordBytes * (wordBytes - min(n, wordBytes)))
}
