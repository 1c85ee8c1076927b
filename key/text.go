package key

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// These are the problems of a document, as in "invalid JSON: PROBLEM at byte
// N".
const (
	badEnd       = "the document ends too early"
	badControl   = "a control character in a string must be escaped"
	badEscape    = "a backslash is not followed by an escape"
	badHex       = "\\u is not followed by four hexadecimal digits"
	badNumber    = "a number has a form that JSON does not allow"
	badValue     = "expected a value"
	badName      = "expected a member name in double quotes"
	badColon     = "expected ':' after a member name"
	badInObject  = "expected ',' or '}' after a member"
	badInArray   = "expected ',' or ']' after an element"
	badTrailing  = "expected the end of the document"
	badTooNested = "the document nests deeper than 10000 levels"
)

// The functions below read eight bytes as one word. A byte stops a run of plain
// text if it is a quote, a backslash or below 0x20.
const (
	eachByte  = 0x0101010101010101
	highBits  = 0x8080808080808080
	quotes    = '"' * eachByte
	slashes   = '\\' * eachByte
	controls  = 0x20 * eachByte
	wordBytes = 8
)

// stops returns a word whose lowest set bit is the high bit of the first byte
// in w that stops plain text. Bits above it may be wrong, because a subtraction
// borrows. It is zero if no byte stops.
func stops(w uint64) uint64 {
	return (((w ^ quotes) - eachByte) | ((w ^ slashes) - eachByte) | (w - controls)) &^ w & highBits
}

// plainEnd returns the position of the first byte from i on that stops plain
// text, or the length of the document.
func plainEnd(doc []byte, i int) int {
	for ; i+wordBytes <= len(doc); i += wordBytes {
		if m := stops(binary.LittleEndian.Uint64(doc[i : i+wordBytes])); m != 0 {
			return i + bits.TrailingZeros64(m)/8
		}
	}
	return i + bits.TrailingZeros64(stops(lastWord(doc, i)))/8
}

// lastWord returns the bytes from i on, of which there are fewer than eight,
// followed by zeros.
func lastWord(doc []byte, i int) uint64 {
	if len(doc) >= wordBytes {
		return binary.LittleEndian.Uint64(doc[len(doc)-wordBytes:]) >> (8 * (i + wordBytes - len(doc)))
	}
	var w uint64
	for j := len(doc) - 1; j >= i; j-- {
		w = w<<8 | uint64(doc[j])
	}
	return w
}

// stringEnd scans a string whose text starts at i, after the quote. It returns
// the position after the closing quote, and whether there are escapes. If the
// string is not valid, bad says why and end says where.
func stringEnd(doc []byte, i int) (end int, escaped bool, bad string) {
	i = plainEnd(doc, i)
	if i < len(doc) && doc[i] == '"' {
		return i + 1, false, ""
	}
	for i < len(doc) && doc[i] == '\\' {
		if i, bad = escapeEnd(doc, i); bad != "" {
			return i, true, bad
		}
		i = plainEnd(doc, i)
	}
	switch {
	case i == len(doc):
		return i, true, badEnd
	case doc[i] != '"':
		return i, true, badControl
	}
	return i + 1, true, ""
}

// escapeEnd returns the position after the escape whose backslash is at i.
func escapeEnd(doc []byte, i int) (end int, bad string) {
	if i+1 >= len(doc) {
		return len(doc), badEnd
	}
	switch doc[i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 2, ""
	case 'u':
		for j := i + 2; j < i+6; j++ {
			if j >= len(doc) {
				return j, badEnd
			}
			if hexDigit(doc[j]) < 0 {
				return j, badHex
			}
		}
		return i + 6, ""
	}
	return i + 1, badEscape
}

// numberEnd returns the position after the number at i, which begins with a
// digit or '-'. If the number is not valid, ok is false and end is the position
// of the error.
func numberEnd(doc []byte, i int) (end int, ok bool) {
	if doc[i] == '-' {
		i++
	}
	start := i
	i = digitsEnd(doc, i)
	switch {
	case i == start:
		return i, false
	case doc[start] == '0' && i > start+1:
		return start + 1, true // a digit after a leading 0 does not belong to the number
	}
	if i < len(doc) && doc[i] == '.' {
		start = i + 1
		if i = digitsEnd(doc, start); i == start {
			return i, false
		}
	}
	if i < len(doc) && doc[i]|0x20 == 'e' {
		i++
		if i < len(doc) && (doc[i] == '+' || doc[i] == '-') {
			i++
		}
		start = i
		if i = digitsEnd(doc, start); i == start {
			return i, false
		}
	}
	return i, true
}

// digitsEnd returns the position of the first byte from i on that is not a
// digit.
func digitsEnd(doc []byte, i int) int {
	for ; i+wordBytes <= len(doc); i += wordBytes {
		if m := nonDigits(binary.LittleEndian.Uint64(doc[i : i+wordBytes])); m != 0 {
			return i + bits.TrailingZeros64(m)/8
		}
	}
	return i + bits.TrailingZeros64(nonDigits(lastWord(doc, i)))/8
}

// nonDigits is like stops, for bytes that are not digits.
func nonDigits(w uint64) uint64 {
	w ^= '0' * eachByte // maps the digits to 0 to 9
	return (w + (0x80-10)*eachByte | w) & highBits
}

// appendUnescaped appends the value of the text of a valid string without its
// quotes. Invalid UTF-8 stays as it is. Half of a surrogate pair has no
// encoding: lone reports that there was one, and that its three bytes are only
// a replacement.
func appendUnescaped(dst, text []byte) (value []byte, lone bool) {
	for i := 0; ; {
		run := bytes.IndexByte(text[i:], '\\')
		if run < 0 {
			return append(dst, text[i:]...), lone
		}
		dst = append(dst, text[i:i+run]...)
		i += run
		if text[i+1] != 'u' {
			dst = append(dst, unescape(text[i+1]))
			i += 2
			continue
		}
		r, size := unescapeRune(text[i:])
		i += size
		if utf16.IsSurrogate(r) {
			lone = true
			dst = append(dst, 0xE0|byte(r>>12), 0x80|byte(r>>6)&0x3F, 0x80|byte(r)&0x3F)
			continue
		}
		dst = utf8.AppendRune(dst, r)
	}
}

// unescape returns the byte that a one-letter escape stands for.
func unescape(c byte) byte {
	switch c {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return c
}

// isLetter has the bytes that form an escape with a backslash before them.
var isLetter = [256]bool{'"': true, '\\': true, '/': true, 'b': true, 'f': true, 'n': true, 'r': true, 't': true}

// unescapeRune decodes the \u escape, or the pair of them, at the start of
// text. It returns a lone surrogate as it is.
func unescapeRune(text []byte) (r rune, size int) {
	r = hexRune(text[2:])
	if utf16.IsSurrogate(r) && len(text) >= 12 && text[6] == '\\' && text[7] == 'u' {
		if pair := utf16.DecodeRune(r, hexRune(text[8:])); pair != utf8.RuneError {
			return pair, 12
		}
	}
	return r, 6
}

func hexRune(text []byte) rune {
	var r rune
	for _, c := range text[:4] {
		r = r<<4 | rune(hexDigit(c))
	}
	return r
}

// hexDigit returns the value of a hexadecimal digit, or -1.
func hexDigit(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c|0x20 && c|0x20 <= 'f':
		return int(c|0x20-'a') + 10
	}
	return -1
}

// appendCanonicalString appends value as a JSON string with as few escapes as
// JSON allows, each in its shortest form.
func appendCanonicalString(dst, value []byte) []byte {
	return append(appendCanonicalName(append(dst, '"'), value), '"')
}

// appendCanonicalName is appendCanonicalString without the quotes on both sides.
func appendCanonicalName[T string | []byte](dst []byte, value T) []byte {
	for i := range len(value) {
		dst = appendCanonicalByte(dst, value[i])
	}
	return dst
}

// appendCanonicalText appends the canonical form of the text of a valid string,
// without the quotes on both sides. A lone surrogate stays an escape.
func appendCanonicalText(dst, text []byte) []byte {
	for i := 0; i < len(text); {
		switch c := text[i]; {
		case c != '\\':
			dst = append(dst, c)
			i++
		case text[i+1] != 'u':
			dst = appendCanonicalByte(dst, unescape(text[i+1]))
			i += 2
		default:
			r, size := unescapeRune(text[i:])
			i += size
			switch {
			case utf16.IsSurrogate(r):
				dst = appendHexEscape(dst, uint16(r))
			case r < utf8.RuneSelf:
				dst = appendCanonicalByte(dst, byte(r))
			default:
				dst = utf8.AppendRune(dst, r)
			}
		}
	}
	return dst
}

func appendCanonicalByte(dst []byte, c byte) []byte {
	switch {
	case c == '"' || c == '\\':
		return append(dst, '\\', c)
	case c >= ' ':
		return append(dst, c)
	}
	switch c {
	case '\b':
		return append(dst, `\b`...)
	case '\f':
		return append(dst, `\f`...)
	case '\n':
		return append(dst, `\n`...)
	case '\r':
		return append(dst, `\r`...)
	case '\t':
		return append(dst, `\t`...)
	}
	return appendHexEscape(dst, uint16(c))
}

func appendHexEscape(dst []byte, u uint16) []byte {
	const digits = "0123456789abcdef"
	return append(dst, '\\', 'u', digits[u>>12], digits[u>>8&15], digits[u>>4&15], digits[u&15])
}
