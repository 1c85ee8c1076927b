package keyrecord

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/httpidem"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/jsonid"
)

// parse parses the flags of a verb that names a key.
func parse(t *testing.T, line string) (*KeyFlags, []string) {
	t.Helper()
	var f KeyFlags
	cmd := &cobra.Command{Use: "show"}
	f.Add(cmd)
	f.AddDigest(cmd)
	f.AddCaller(cmd)
	if err := cmd.ParseFlags(strings.Fields(line)); err != nil {
		t.Fatal(err)
	}
	return &f, cmd.Flags().Args()
}

func TestCommandLineWordsAreTriedAsTextAndAsNumber(t *testing.T) {
	t.Parallel()
	for line, want := range map[string][]string{
		"order-1":               {"order-1"},
		"42":                    {"42", "\x00n42"},
		"--json-id 42":          {"\x00n42"},
		`--json-id "42"`:        {"42"},
		`--json-id "a" 1`:       {"\x00c\x01a\x03\x00n1"},
		`--json-id ["a",1]`:     {"\x00c\x01a\x03\x00n1"},
		"a b":                   {"\x00c\x01a\x01b"},
		"--caller alice key-42": {httpidem.Key("", "alice", "key-42").ID, ""},
	} {
		f, words := parse(t, line)
		var wrong term.Problems
		keys := f.Keys("s", words, &wrong)
		var got []string
		for _, key := range keys {
			if key.Scope != "s" {
				t.Errorf("%s: scope %q", line, key.Scope)
			}
			got = append(got, key.ID)
		}
		if f.OfCaller() && len(got) == 2 && got[1] != got[0] { // the digest of the caller's name
			got[1] = ""
		}
		if !slices.Equal(got, want) || wrong.Err() != nil {
			t.Errorf("%s: got %q %v, want %q", line, got, wrong, want)
		}
	}
}

func TestCommandLineWordsThatAreNotAKeyAreRefused(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"":                           "the ID of the key is missing: name the key, or --digest DIGEST",
		"--json-id {}":               "ID {}: it is an object: expected a string, a number, true or false, or one array of these",
		"--json-id null":             "ID null: it is null",
		"--json-id []":               "ID []: it is an empty array",
		"--json-id [1,null]":         "ID [1,null]: part 2: it is null",
		"--json-id [1":               "ID [1: unexpected end",
		"--json-id nope":             "ID nope: not JSON: ",
		"--caller alice a b":         "--caller takes one Idempotency-Key, without --json-id",
		"--caller alice --json-id 1": "--caller takes one Idempotency-Key, without --json-id",
	} {
		f, words := parse(t, line)
		var wrong term.Problems
		keys := f.Keys("s", words, &wrong)
		if len(keys) > 0 || len(wrong) != 1 || !strings.HasPrefix(wrong[0], want) {
			t.Errorf("%.40s: %q, %q, want %q", line, keys, wrong, want)
		}
	}
}

func TestADigestNamesAKeyByItself(t *testing.T) {
	t.Parallel()
	digest := semel.Digest{0xab, 15: 1}
	f, words := parse(t, "--digest "+digest.String())
	var wrong term.Problems
	if got, ok := f.Digest(words, &wrong); !ok || got != digest || wrong.Err() != nil {
		t.Errorf("%v %v %v", got, ok, wrong)
	}
	f, words = parse(t, "id")
	if _, ok := f.Digest(words, &wrong); ok || wrong.Err() != nil {
		t.Errorf("without the flag: %v", wrong)
	}
	for line, want := range map[string]string{
		"id --digest " + digest.String():         "--digest and an ID exclude each other",
		"--json-id --digest " + digest.String():  "--digest and an ID exclude each other",
		"--caller x --digest " + digest.String(): "--digest and an ID exclude each other",
		"--digest abc":                           `--digest "abc": expected the 32 hexadecimal digits`,
		"--digest " + digest.String() + "00":     "expected the 32 hexadecimal digits",
		"--digest " + strings.Repeat("zz", 16):   "expected the 32 hexadecimal digits",
		"--digest " + strings.Repeat("0", 32):    "expected the 32 hexadecimal digits",
	} {
		f, words := parse(t, line)
		var wrong term.Problems
		if f.Digest(words, &wrong); len(wrong) != 1 || !strings.Contains(wrong[0], want) {
			t.Errorf("%s: %q, want %q", line, wrong, want)
		}
	}
}

func TestReasonFlagIsRequired(t *testing.T) {
	t.Parallel()
	cmd := &cobra.Command{Use: "rm"}
	var reason string
	AddReason(cmd, &reason)
	for text, ok := range map[string]bool{"sent twice": true, "": false, " \t": false} {
		if err := cmd.ParseFlags([]string{"--reason", text}); err != nil {
			t.Fatal(err)
		}
		var wrong term.Problems
		if CheckReason(reason, &wrong); (wrong.Err() == nil) != ok {
			t.Errorf("%q: %v", text, wrong)
		}
	}
}

func TestIDsAndScopesInJSONReadBackOrAreRefused(t *testing.T) {
	t.Parallel()
	p := jsonid.NewParser()
	for text, want := range map[string]string{`""`: "", `"a\u0000b"`: "a\x00b", `"\u0000x"`: "\x00x", `"ß"`: "ß"} {
		if got, err := p.Scope([]byte(text)); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", text, got, err, want)
		}
	}
	for text, want := range map[string]string{"1": "scope: expected a string", "null": "scope: it is null", `"\ud800"`: "scope: it has half of a surrogate pair", "[": "scope: "} {
		if got, err := p.Scope([]byte(text)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %q, %v; want %q", text, got, err, want)
		}
	}
	if text, err := jsonid.ParseBase64("/w=="); err != nil || text != "\xff" {
		t.Errorf("%q %v", text, err)
	}
	if _, err := jsonid.ParseBase64("?"); err == nil || err.Error() != "not base64" {
		t.Errorf("%v", err)
	}
}
