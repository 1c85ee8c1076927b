package key

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"slices"

	"github.com/semel-dev/semel"
)

// These bytes follow a leading NUL and tell encodings apart. They are stored in
// key stores and never change their meaning.
const (
	mark          = 0x00
	markString    = 's'
	markNumber    = 'n'
	markTrue      = 't'
	markFalse     = 'f'
	markComposite = 'c'
	markContent   = 'h'
	markBytes     = 'b'
	markUnpaired  = 'u'
)

// AppendString appends the id of a string: its bytes. The empty string is not
// an id, and AppendString appends nothing for it.
func AppendString[T string | []byte](dst []byte, value T) []byte {
	if len(value) > 0 && value[0] == mark {
		dst = append(dst, mark, markString)
	}
	return append(dst, value...)
}

// AppendNumber appends the id of a number from its text, which it does not
// check.
func AppendNumber[T string | []byte](dst []byte, text T) []byte {
	return append(append(dst, mark, markNumber), text...)
}

// appendBool appends the id of true or false.
func appendBool(dst []byte, value bool) []byte {
	if value {
		return append(dst, mark, markTrue)
	}
	return append(dst, mark, markFalse)
}

// AppendComposite appends the id of several parts in their order. Each part is
// an id by itself, as the other functions append it. One part is its own
// composite. Without parts there is no id, and AppendComposite appends nothing.
func AppendComposite[T string | []byte](dst []byte, parts ...T) []byte {
	switch len(parts) {
	case 0:
		return dst
	case 1:
		return append(dst, parts[0]...)
	}
	dst = append(dst, mark, markComposite)
	for _, part := range parts {
		dst = appendPart(dst, part)
	}
	return dst
}

func appendPart[T string | []byte](dst []byte, part T) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(part))), part...)
}

// AppendBytes appends the SHA-256 of bytes as their id, for bytes without a
// better id. It never equals the id of JSON content, even of the same bytes.
func AppendBytes(dst, data []byte) []byte {
	sum := sha256.Sum256(data)
	return append(append(dst, mark, markBytes), sum[:]...)
}

// AppendLine appends the id of a whole line or body. That is the id of a
// string, or that of bytes if the line is empty or too long for a key store.
func AppendLine(dst, line []byte) []byte {
	if len(line) == 0 || len(line) > semel.MaxKeyBytes-len("\x00s") {
		return AppendBytes(dst, line)
	}
	return AppendString(dst, line)
}

// AppendJSON appends an id as a JSON value. A string, a number, true or false is as it was in
// the message, a composite is an array of its parts, and a hash is hexadecimal digits. Two
// ids can have one JSON value only if one of them is a hash.
func AppendJSON(dst, id []byte) []byte {
	if len(id) < 2 || id[0] != mark {
		return appendQuoted(dst, id)
	}
	switch rest := id[2:]; id[1] {
	case markString:
		return appendQuoted(dst, rest)
	case markNumber, markUnpaired:
		return append(dst, rest...)
	case markTrue:
		return append(dst, "true"...)
	case markFalse:
		return append(dst, "false"...)
	case markContent, markBytes:
		return append(hex.AppendEncode(append(dst, '"'), rest), '"')
	case markComposite:
		from := len(dst)
		dst = append(dst, '[')
		for len(rest) > 0 {
			n, size := binary.Uvarint(rest)
			if size <= 0 || n > uint64(len(rest)-size) {
				return appendQuoted(dst[:from], id) // no function here made it
			}
			if len(dst) > from+1 {
				dst = append(dst, ',')
			}
			dst = AppendJSON(dst, rest[size:size+int(n)])
			rest = rest[size+int(n):]
		}
		return append(dst, ']')
	}
	return appendQuoted(dst, id)
}

func appendQuoted(dst, text []byte) []byte {
	if !slices.ContainsFunc(text, func(c byte) bool { return c < ' ' || c > '~' || c == '"' || c == '\\' }) {
		return append(append(append(dst, '"'), text...), '"')
	}
	var b bytes.Buffer
	to := json.NewEncoder(&b)
	to.SetEscapeHTML(false)
	_ = to.Encode(string(text)) // never fails for a string
	return append(dst, bytes.TrimSuffix(b.Bytes(), []byte("\n"))...)
}

// AppendText appends an id as text: a string as it is, and any other as AppendJSON, but
// hashes without quotes.
func AppendText(dst, id []byte) []byte {
	switch {
	case len(id) < 2 || id[0] != mark:
		return append(dst, id...)
	case id[1] == markString:
		return append(dst, id[2:]...)
	case id[1] == markContent || id[1] == markBytes:
		return hex.AppendEncode(dst, id[2:])
	}
	return AppendJSON(dst, id)
}
