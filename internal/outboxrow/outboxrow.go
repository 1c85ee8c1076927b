// Package outboxrow has what writers and relays of an outbox must agree on: the form of a
// row's headers, and the channel that wakes relays.
package outboxrow

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/pgstore"
)

// Channel returns the channel of NOTIFY that wakes the relays of an outbox, such as
// semel_outbox. If the names are invalid, the error wraps semel.ErrInvalidRequest.
func Channel(names pgstore.Names) (string, error) {
	table, err := names.Table("outbox")
	return strings.Trim(table[strings.LastIndexByte(table, '.')+1:], `"`), err
}

// EncodeHeaders encodes headers for the column of the outbox: a JSON object of texts in
// their order. Without headers it returns "". A name may occur several times. A name or
// value that is not a text in UTF-8 is an error.
func EncodeHeaders(list []semel.Header) (string, error) {
	if len(list) == 0 {
		return "", nil
	}
	var out bytes.Buffer
	for i, h := range list {
		if !utf8.ValidString(h.Name) || !utf8.Valid(h.Value) {
			return "", fmt.Errorf("header %d (%.40q): not a text in UTF-8: encode the value, for instance in base64", i, h.Name)
		}
		// Marshal cannot fail for a string.
		name, _ := json.Marshal(h.Name)
		value, _ := json.Marshal(string(h.Value))
		out.WriteByte("{,"[min(i, 1)])
		out.Write(name)
		out.WriteByte(':')
		out.Write(value)
	}
	out.WriteByte('}')
	return out.String(), nil
}
