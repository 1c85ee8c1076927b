package keyrecord

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
)

var (
	seen = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	ends = seen.Add(time.Hour)
)

func TestRecordsAreShownAsTextAndAsJSON(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		record semel.Record
		text   string
		json   string
	}{
		"done with a result": {
			semel.Record{Key: semel.Key{Scope: "s", ID: "order-1"}, State: semel.Done, FirstSeen: seen, Attempt: 1, Origin: "in.jsonl, byte 0", Expires: ends, Result: semel.Result{Kind: semel.Value}, ResultSize: 2048, Fingerprint: semel.Fingerprint{1}},
			"key          order-1\nscope        s\nstate        done\nfirst seen   2026-01-02 03:04:05 UTC\norigin       in.jsonl, byte 0\nattempts     1\nexpires      2026-01-02 04:04:05 UTC\nresult       2.0 KiB\nfingerprint  " + semel.Fingerprint{1}.String() + "\n",
			`{"scope":"s","id":"order-1","state":"done","first_seen":"2026-01-02T03:04:05Z","attempts":1,"origin":"in.jsonl, byte 0","expires":"2026-01-02T04:04:05Z","fingerprint":"` + semel.Fingerprint{1}.String() + `","result":"value","result_size":2048}`,
		},
		"done forever with an error": {
			semel.Record{Key: semel.Key{ID: "x"}, State: semel.Done, Result: semel.Result{Kind: semel.Failed}, ResultSize: 3},
			"key          x\nscope        \"\"\nstate        done\nexpires      never\nresult       permanent error, 3 B\n",
			`{"scope":"","id":"x","state":"done","expires":"forever","result":"failed","result_size":3}`,
		},
		"done with a result that was too large": {
			semel.Record{State: semel.Done, Digest: semel.Digest{1}, Expires: ends, Result: semel.Result{Kind: semel.NotKept}},
			"state        done\nexpires      2026-01-02 04:04:05 UTC\nresult       not kept: it was too large\ndigest       " + semel.Digest{1}.String() + "\n",
			`{"digest":"` + semel.Digest{1}.String() + `","state":"done","expires":"2026-01-02T04:04:05Z","result":"not_kept","result_size":0}`,
		},
		"done without a result": {
			semel.Record{Key: semel.Key{Scope: "s", ID: "x"}, State: semel.Done, Expires: ends},
			"key          x\nscope        s\nstate        done\nexpires      2026-01-02 04:04:05 UTC\nresult       none\n",
			`{"scope":"s","id":"x","state":"done","expires":"2026-01-02T04:04:05Z"}`,
		},
		"claimed by a process that has ended": {
			semel.Record{Key: semel.Key{Scope: "s", ID: "\x00n7"}, State: semel.Claimed, Attempt: 2, Holder: "worker\x1b7", Orphaned: true, LeaseEnd: ends},
			"key          7\nscope        s\nstate        claimed\nattempts     2\nholder       \"worker\\x1b7\"\norphaned     the holder's process has ended or closed the store; its effect may still run\nlease end    2026-01-02 04:04:05 UTC\n",
			`{"scope":"s","id":7,"state":"claimed","attempts":2,"holder":"worker\u001b7","orphaned":true,"lease_end":"2026-01-02T04:04:05Z"}`,
		},
		"bytes that are no text": {
			semel.Record{Key: semel.Key{Scope: "\xff", ID: "\xfe"}, State: semel.Unknown},
			"key          \"\\xfe\"\nscope        \"\\xff\"\nstate        unknown\n",
			`{"scope_base64":"/w==","id_base64":"/g==","state":"unknown"}`,
		},
	} {
		var text bytes.Buffer
		if err := Write(&text, &c.record); err != nil || text.String() != c.text {
			t.Errorf("%s: %v\ngot\n%s\nwant\n%s", name, err, &text, c.text)
		}
		if line, err := json.Marshal(NewLine(&c.record)); err != nil || string(line) != c.json {
			t.Errorf("%s: %v\ngot  %s\nwant %s", name, err, line, c.json)
		}
	}
}

func TestScopesOfRecordsAreNamedInMessages(t *testing.T) {
	t.Parallel()
	in := func(scopes ...string) (records []semel.Record) {
		for _, scope := range scopes {
			records = append(records, semel.Record{Key: semel.Key{Scope: scope}})
		}
		return records
	}
	for _, c := range []struct {
		records   []semel.Record
		in, flags string
	}{
		{in("a", "a"), "scope a", "--scope a"},
		{in("a", "", "a"), `the scopes a and ""`, "--scope a or --scope ''"},
		{in("a", "b c", "d"), "the scopes a, b c and d", "--scope a or --scope 'b c' or --scope d"},
	} {
		scopes := ScopesOf(c.records)
		if got := InScopes(scopes); got != c.in {
			t.Errorf("got %s, want %s", got, c.in)
		}
		if got := ChooseScope(scopes); got != c.flags {
			t.Errorf("got %s, want %s", got, c.flags)
		}
	}
}

func TestSuggestedCommandsFollowTheKeyState(t *testing.T) {
	t.Parallel()
	store := []string{"--store", "./my keys"}
	for state, want := range map[semel.State]string{
		semel.Unknown: "if the effect happened:\n  semel keys resolve --as done --reason 'the effect happened' --store './my keys' --scope s -- -x\n" +
			"if the effect did not happen:\n  semel keys resolve --as absent --reason 'the effect did not happen' --store './my keys' --scope s -- -x\n",
		semel.Done:    "to process its message again:\n  semel keys rm --reason 'process it again' --store './my keys' --scope s -- -x\n",
		semel.Claimed: "",
		semel.Absent:  "",
	} {
		var text bytes.Buffer
		err := WriteCommands(&text, Commands(&semel.Record{Key: semel.Key{Scope: "s", ID: "-x"}, State: state}, store))
		if err != nil || text.String() != want {
			t.Errorf("%v: %v\ngot\n%s\nwant\n%s", state, err, &text, want)
		}
	}
	for _, c := range []struct {
		record semel.Record
		want   string
	}{
		{semel.Record{Key: semel.Key{Scope: "s", ID: "a b"}}, "semel keys show 'a b' --scope s"},
		{semel.Record{Key: semel.Key{Scope: "s", ID: "42"}}, `semel keys show --json-id '"42"' --scope s`},
		{semel.Record{Key: semel.Key{Scope: "s", ID: "\x00n-1"}}, "semel keys show --json-id --scope s -- -1"},
		{semel.Record{Key: semel.Key{Scope: "s", ID: "\xff"}}, ""},
		{semel.Record{Key: semel.Key{Scope: "s", ID: "\xff"}, Digest: semel.Digest{1}}, "semel keys show --digest " + semel.Digest{1}.String()},
	} {
		if line, ok := LineOf(&c.record, "keys show"); line != c.want || ok != (c.want != "") {
			t.Errorf("%q: got %s, want %s", c.record.Key.ID, line, c.want)
		}
	}
}

func TestWritersThatFailAreReported(t *testing.T) {
	t.Parallel()
	closed, writer := io.Pipe()
	if err := closed.CloseWithError(errors.New("closed")); err != nil {
		t.Fatal(err)
	}
	record := &semel.Record{Key: semel.Key{Scope: "s", ID: "i"}, State: semel.Done}
	for what, err := range map[string]error{"a record": Write(writer, record), "commands": WriteCommands(writer, Commands(record, nil))} {
		if err == nil || !strings.Contains(err.Error(), "closed") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
