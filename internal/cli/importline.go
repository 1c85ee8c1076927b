package cli

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/schema"
)

// importLine is the format that import reads. It has the members that export
// writes, so that an export can be imported.
type importLine struct {
	Scope       json.RawMessage `json:"scope"`
	ScopeBase64 string          `json:"scope_base64"`
	ID          json.RawMessage `json:"id"`
	IDBase64    string          `json:"id_base64"`
	State       string          `json:"state"`
	Window      string          `json:"window"`
	Expires     string          `json:"expires"`

	Digest      string          `json:"digest"`
	FirstSeen   json.RawMessage `json:"first_seen"`
	Attempts    json.RawMessage `json:"attempts"`
	Holder      json.RawMessage `json:"holder"`
	LeaseEnd    json.RawMessage `json:"lease_end"`
	Fingerprint json.RawMessage `json:"fingerprint"`
	Result      json.RawMessage `json:"result"`
	ResultSize  json.RawMessage `json:"result_size"`
}

// importLineFields are the names suggested for an unknown member.
func importLineFields() []string {
	return []string{
		"scope", "scope_base64", "id", "id_base64", "state", "window", "expires",
		"digest", "first_seen", "attempts", "holder", "lease_end", "fingerprint", "result", "result_size",
	}
}

func decodeImportLine(text []byte, line *importLine) error {
	// encoding/json would replace invalid UTF-8, and so make different ids equal.
	if !utf8.Valid(text) {
		return errors.New(`the line is not valid UTF-8: write such an id as "id_base64"`)
	}
	decoder := json.NewDecoder(strings.NewReader(string(text)))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(line)
	if err == nil {
		if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
			return errors.New("there is more than one JSON value in the line")
		}
		if err := checkMembers(text); err != nil {
			return err
		}
		return line.checkRest()
	}
	var wrongType *json.UnmarshalTypeError
	if errors.As(err, &wrongType) {
		if wrongType.Field == "" {
			return fmt.Errorf("the line is a JSON %s: an object is wanted", wrongType.Value)
		}
		return fmt.Errorf("%q is a JSON %s: a string is wanted", wrongType.Field, wrongType.Value)
	}
	if _, name, ok := strings.Cut(err.Error(), "unknown field "); ok {
		name = strings.Trim(name, `"`)
		return fmt.Errorf("unknown member %q: %s", name, schema.OneOf(name, importLineFields()))
	}
	return fmt.Errorf("not JSON: %s", strings.TrimPrefix(err.Error(), "json: "))
}

// checkMembers refuses what encoding/json accepts: names in a different case, and
// members without a value.
func checkMembers(text []byte) error {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(text, &members); err != nil {
		return err
	}
	names := importLineFields()
	for name, value := range members {
		switch {
		case !slices.Contains(names, name):
			return fmt.Errorf("unknown member %q: %s", name, schema.OneOf(strings.ToLower(name), names))
		case string(value) == "null":
			return fmt.Errorf("%s is null: give it a value, or leave it out", name)
		case string(value) == `""` && name != "scope":
			return fmt.Errorf("%s is empty: give it a value, or leave it out", name)
		}
	}
	return nil
}

// checkRest checks the members that export writes and import does not use. If
// they are invalid, the line is not what it seems to be.
func (line *importLine) checkRest() error {
	isTime := func(text string) bool {
		_, err := time.Parse(time.RFC3339, text)
		return err == nil
	}
	isHex := func(text string) bool {
		_, err := hex.DecodeString(text)
		return err == nil && len(text) == hex.EncodedLen(len(semel.Fingerprint{}))
	}
	isResult := func(text string) bool {
		return text == resultName(semel.Value) || text == resultName(semel.Failed) || text == resultName(semel.NotKept)
	}
	for _, member := range []struct {
		name string
		text json.RawMessage
		ok   func(string) bool
		want string
	}{
		{"first_seen", line.FirstSeen, isTime, "a time like 2030-01-01T00:00:00Z"},
		{"lease_end", line.LeaseEnd, isTime, "a time like 2030-01-01T00:00:00Z"},
		{"fingerprint", line.Fingerprint, isHex, "a text of 32 hexadecimal digits"},
		{"result", line.Result, isResult, "value, failed or not_kept"},
		{"holder", line.Holder, func(string) bool { return true }, "a text"},
	} {
		var text string
		if member.text != nil && (json.Unmarshal(member.text, &text) != nil || !member.ok(text)) {
			return fmt.Errorf("%s %s: %s is wanted", member.name, member.text, member.want)
		}
	}
	if line.Digest != "" && !isHex(line.Digest) {
		return fmt.Errorf("digest %q: a text of 32 hexadecimal digits is wanted", line.Digest)
	}
	for name, text := range map[string]json.RawMessage{"attempts": line.Attempts, "result_size": line.ResultSize} {
		if _, err := strconv.ParseUint(string(text), 10, 63); text != nil && err != nil {
			return fmt.Errorf("%s %s: a whole number is wanted", name, text)
		}
	}
	return nil
}
