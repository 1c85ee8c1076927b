package key

import (
	"cmp"
	"slices"
)

// Of members with the same name the last one counts, also in prints. The scan
// adds up members as they come, so it must know whether a name is repeated. It
// does not compare names. It also adds up the hashes of an object's names, and
// looks for the sum among those of objects that are known to have no repeated
// name. If the sum of an object is not there, the document is printed again by
// a slower function.

// nameSets is the number of remembered sums. It is a power of two.
const nameSets = 1024

// nameSet returns the first slot for the sum of an object's name hashes. A new
// sum moves the old one to the neighbouring slot, so that documents stay fast
// if two of their objects share a slot.
func nameSet(sum uint64) uint64 { return sum >> 54 }

// knows reports whether the names of this sum are known not to repeat.
func (f *Finder) knows(sum uint64) bool {
	at := nameSet(sum)
	return sum == 0 || f.names[at] == sum || f.names[at^1] == sum
}

// container is an open container of printLast.
type container struct {
	name, sum uint64 // of the member's name, and of the elements of an array
	first     int    // the first member of an object
	object    bool
}

// memberPrint is a member that printLast has read.
type memberPrint struct{ name, value uint64 }

// printLast prints a document that scan found valid. Of members with the same
// name it prints only the last. It remembers the names of objects without
// repeated names.
func (f *Finder) printLast(doc []byte) (print uint64) {
	open, members := f.open[:0], f.members[:0]
	for i := 0; ; {
		if n := len(open); n > 0 && open[n-1].object {
			_, i = next(doc, i)
			i, open[n-1].name = f.stringPrint(doc, i+1)
			_, i = next(doc, i)
			i++ // the colon
		}
		var c byte
		c, i = next(doc, i)
		start := i
		switch c {
		case '"':
			i, print = f.stringPrint(doc, i+1)
		case 't', 'f', 'n':
			var kind Kind
			kind, i = literalEnd(doc, i)
			print = f.mixer.literal[kind]
		case '{', '[':
			open = append(open, container{first: len(members), object: c == '{'})
			shut, end := next(doc, i+1)
			if shut != c+2 {
				i++
				continue
			}
			i = end + 1
			print = f.printContainer(&open[len(open)-1], nil)
			open = open[:len(open)-1]
		default:
			i, _ = numberEnd(doc, i) // the document is known to be valid
			print = f.mixer.bytes(f.mixer.number, doc, start, i)
		}
		for c = 0; c != ','; i++ {
			if len(open) == 0 {
				f.open, f.members = open, members
				return print
			}
			in := &open[len(open)-1]
			if in.object {
				members = append(members, memberPrint{in.name, print})
			} else {
				in.sum = mum(in.sum^print, f.mixer.word)
			}
			if c, i = next(doc, i); c != ',' {
				print = f.printContainer(in, members[in.first:])
				members, open = members[:in.first], open[:len(open)-1]
			}
		}
	}
}

// printContainer prints a finished container.
func (f *Finder) printContainer(c *container, members []memberPrint) uint64 {
	if !c.object {
		return mum(c.sum^f.mixer.array, f.mixer.value)
	}
	slices.SortStableFunc(members, func(a, b memberPrint) int { return cmp.Compare(a.name, b.name) })
	var sum, names uint64
	repeated := false
	for i, m := range members {
		names += m.name
		if i+1 < len(members) && members[i+1].name == m.name {
			repeated = true
			continue
		}
		sum += f.mixer.member(m.name, m.value)
	}
	if !repeated && !f.knows(names) {
		at := nameSet(names)
		f.names[at^1], f.names[at] = f.names[at], names
	}
	return mum(sum^f.mixer.object, f.mixer.word)
}
