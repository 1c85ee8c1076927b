package key

import "encoding/binary"

// The documents of one file or topic mostly have the same members in the same
// order. So the finder remembers, for each member name that it scanned, the
// two names that followed the last times. It first compares the text with them.
// If one is equal, the name needs no scan, no lookup of its place and no hash. Otherwise the finder scans the name. A name that is known from
// elsewhere at least needs no lookup and no hash.

const (
	memoWords = 4
	memoBytes = memoWords * wordBytes
	// memoSlots is a power of two.
	memoSlots = 128
	// memoProbes is the number of slots, from the slot of its hash on, in which
	// a name may be.
	memoProbes = 4
)

// memo is a scanned name.
type memo struct {
	// text is the scanned text: from the end of the '{' or ',' before the name
	// to the end of the colon, with white space. mask selects its bytes from
	// those that follow.
	text, mask [memoWords]uint64
	size       int
	// hash is the name's print.
	hash uint64
	// next is the name that followed the last time, and other one that did before.
	next, other *memo
	// at is the place of the object, and to is the place of the member.
	at, to int32
	// renews is set if paths continue below the member. Values from an earlier
	// member of the same name must be dropped then.
	renews bool
}

// follow notes that the name of next followed.
func (m *memo) follow(next *memo) {
	if m.next != next {
		m.next, m.other = next, m.next
	}
}

// matches reports whether the next two words of the document, in an object at a
// place, start with the text of the memo.
func (m *memo) matches(w0, w1 uint64, at int32) bool {
	return (w0^m.text[0])&m.mask[0]|(w1^m.text[1])&m.mask[1] == 0 && m.at == at
}

// endMatches is matches for the text after the first two words.
func (m *memo) endMatches(doc []byte, i int) bool {
	return m.size <= 2*wordBytes || i+memoBytes <= len(doc) &&
		(binary.LittleEndian.Uint64(doc[i+16:])^m.text[2])&m.mask[2]|
			(binary.LittleEndian.Uint64(doc[i+24:])^m.text[3])&m.mask[3] == 0
}

// recall returns the memo of the text that starts at i and whose name goes from
// quote to nameEnd. If the name is not known, m is nil and home is the slot for
// it. home is below 0 if the name cannot be remembered, because it is too long
// or too close to the end of the document.
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

// remember puts the text doc[i:end], the place of the name and its hash into a
// slot that recall returned, and returns the memo. Without a slot, or if the
// text is too long, the next name overwrites the memo.
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
		m.at = at
		last.follow(m)
	} else {
		m.next, m.other = last.next, last.other
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
