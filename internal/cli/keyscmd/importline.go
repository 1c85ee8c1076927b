package keyscmd

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
	"github.com/semel-dev/semel/internal/cli/keyrecord"
	"github.com/semel-dev/semel/internal/schema"
)

// importLine is a line that import reads: its members by name.
type importLine map[string]json.RawMessage

// text returns a member that is a string, or "" if the line lacks it.
func (line importLine) text(name string) (text string) {
	if raw, ok := line[name]; ok {
		_ = json.Unmarshal(raw, &text) // parseImportLine has checked it
	}
	return text
}

// importMember is a member that a line can have.
type importMember struct {
	name  string
	want  string // what it must be, for messages
	valid func(json.RawMessage) bool
}

// importMembers are all members that export writes, so that an export can be
// imported. If a member that import does not use is invalid, the line is not what it
// seems to be.
func importMembers() []importMember {
	text := func(valid func(string) bool) func(json.RawMessage) bool {
		return func(raw json.RawMessage) bool {
			var text string
			return json.Unmarshal(raw, &text) == nil && valid(text)
		}
	}
	isText := text(func(string) bool { return true })
	isTime := text(func(text string) bool {
		_, err := time.Parse(time.RFC3339, text)
		return err == nil
	})
	isHex := text(func(text string) bool {
		_, err := hex.DecodeString(text)
		return err == nil && len(text) == hex.EncodedLen(len(semel.Fingerprint{}))
	})
	isResult := text(func(text string) bool {
		return slices.Contains([]string{keyrecord.ResultName(semel.Value), keyrecord.ResultName(semel.Failed), keyrecord.ResultName(semel.NotKept)}, text)
	})
	isCount := func(raw json.RawMessage) bool {
		_, err := strconv.ParseUint(string(raw), 10, 63)
		return err == nil
	}
	isAnything := func(json.RawMessage) bool { return true } // read later, by a jsonid.Parser
	const aTime, aDigest, aCount = "a time like 2030-01-01T00:00:00Z", "32 hexadecimal digits", "a whole number"
	return []importMember{
		{"scope", "", isAnything}, {"scope_base64", "a string", isText}, {"id", "", isAnything}, {"id_base64", "a string", isText},
		{"state", "a string", isText}, {"window", "a string", isText}, {"expires", "a string", isText},
		{"digest", aDigest, isHex}, {"first_seen", aTime, isTime}, {"attempts", aCount, isCount}, {"holder", "a string", isText}, {"origin", "a string", isText},
		{"lease_end", aTime, isTime}, {"fingerprint", aDigest, isHex},
		{"result", "value, failed or not_kept", isResult}, {"result_size", aCount, isCount},
	}
}

// parseImportLine reads a line and checks each member.
func parseImportLine(text []byte, members []importMember) (line importLine, err error) {
	// encoding/json would replace invalid UTF-8, and so make different ids equal.
	if !utf8.Valid(text) {
		return nil, errors.New(`the line is not valid UTF-8: write such an id as "id_base64"`)
	}
	decoder := json.NewDecoder(strings.NewReader(string(text)))
	if err := decoder.Decode(&line); err != nil {
		if wrongType, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return nil, fmt.Errorf("expected a JSON object, got a JSON %s", wrongType.Value)
		}
		return nil, fmt.Errorf("not JSON: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more than one JSON value in the line")
	}
	for name, value := range line {
		i := slices.IndexFunc(members, func(m importMember) bool { return m.name == name })
		switch {
		case i < 0:
			var names []string
			for _, m := range members {
				names = append(names, m.name)
			}
			return nil, fmt.Errorf("unknown member %q: %s", name, schema.OneOf(strings.ToLower(name), names))
		case string(value) == "null":
			return nil, fmt.Errorf("%s is null: give it a value, or leave it out", name)
		case string(value) == `""` && name != "scope":
			return nil, fmt.Errorf("%s is empty: give it a value, or leave it out", name)
		case !members[i].valid(value):
			return nil, fmt.Errorf("%s %s: expected %s", name, value, members[i].want)
		}
	}
	return line, nil
}
