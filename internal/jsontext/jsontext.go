// Package jsontext divides a JSON text, which is known to be valid, into its values. It
// changes none of them: encoding/json would round numbers, merge names that come twice,
// and replace what is not Unicode. Package key reads JSON by itself, because it validates,
// finds and prints a message in one pass that allocates nothing.
package jsontext

import "bytes"

// Trim returns the value of a text without the white space around it.
func Trim(text []byte) []byte {
	start := space(text, 0)
	return text[start:end(text, start)]
}

// Next returns a member of an object, or an element of an array, as it is written. The
// name of a member is a string with its quotes, and the name of an element is nil. next
// is the place of the following one, and the first place is 0. After the last one, and for
// a value that is neither object nor array, child is nil. The value must have no space
// before it.
func Next(value []byte, place int) (name, child []byte, next int) {
	i := place
	switch {
	case i > 0:
	case value[0] == '{' || value[0] == '[':
		i = space(value, 1)
	default:
		return nil, nil, 0
	}
	if value[i] == value[0]+2 { // the bracket that closes
		return nil, nil, i
	}
	if value[0] == '{' {
		name = value[i:end(value, i)]
		i = space(value, space(value, i+len(name))+1) // behind the colon
	}
	start := i
	i = end(value, start)
	child = value[start:i]
	if i = space(value, i); value[i] == ',' {
		i = space(value, i+1)
	}
	return name, child, i
}

// space returns the index of the first byte from i on that is not white space.
func space(text []byte, i int) int {
	for text[i] == ' ' || text[i] == '\n' || text[i] == '\t' || text[i] == '\r' {
		i++
	}
	return i
}

// end returns the index behind the value that begins at text[i].
func end(text []byte, i int) int {
	switch text[i] {
	case '"':
		return endOfString(text, i)
	case '{', '[':
		for depth := 0; ; {
			switch text[i] {
			case '"':
				i = endOfString(text, i)
				continue
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					return i + 1
				}
			}
			i++
		}
	}
	for i < len(text) {
		switch text[i] {
		case ',', '}', ']', ' ', '\n', '\t', '\r':
			return i
		}
		i++
	}
	return i
}

func endOfString(text []byte, i int) int {
	for quote := i + 1; ; quote++ {
		more := bytes.IndexByte(text[quote:], '"')
		if more < 0 {
			return len(text)
		}
		quote += more
		escapes := 0 // an even number of them escapes each other
		for text[quote-1-escapes] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return quote + 1
		}
	}
}
