package key

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

func mustPath(t testing.TB, text string) Path {
	t.Helper()
	p, err := ParsePath(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func mustFinder(t testing.TB, opts *FinderOptions, paths ...string) *Finder {
	t.Helper()
	var parsed []Path
	for _, p := range paths {
		parsed = append(parsed, mustPath(t, p))
	}
	f, err := NewFinder(parsed, opts)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestFindFindsTheLastMemberAtThePath(t *testing.T) {
	t.Parallel()
	tests := []struct {
		path, doc, want string
		kind            Kind
	}{
		{".id", `{"id":1}`, `1`, Number},
		{".id", " \t\r\n{ \"id\" : -1.50e+3 } \n", `-1.50e+3`, Number},
		{".id", `{"a":{"id":1},"b":[{"id":2}],"id":"3"}`, `"3"`, String},
		{".id", `{"id":1,"a":{"id":2}}`, `1`, Number},
		{".id", `{"id":1,"id":2}`, `2`, Number},
		{".id", `{"\u0069d":"x"}`, `"x"`, String},
		{".id", `{"id":1,"i\u0064":true}`, `true`, True},
		{".id", `{"id":null}`, `null`, Null},
		{".id", `{"id":false}`, `false`, False},
		{".id", `{"id":{"id": [ 1 ]} }`, `{"id": [ 1 ]}`, Object},
		{".id", `{"id":[]}`, `[]`, Array},
		{".id", `{"ID":1,"id2":2,"i":3}`, ``, Missing},
		{".id", `[{"id":1}]`, ``, Missing},
		{".id", `"id"`, ``, Missing},
		{".a.b", `{"a":{"b":1},"a":{"c":2}}`, ``, Missing},
		{".a.b", `{"a":{"b":1},"a":2}`, ``, Missing},
		{".a.b", `{"a":2,"a":{"b":{},"b":"x"}}`, `"x"`, String},
		{".a.b", `{"a":[{"b":1}]}`, ``, Missing},
		{".a.b", `{"a.b":1}`, ``, Missing},
		{`.["a.b"]`, `{"a.b":1}`, `1`, Number},
		{`.[""]`, `{"":1}`, `1`, Number},
		{`.["\u00e9\""]`, `{"é\"":1}`, `1`, Number},
		{".items[1].id", `{"items":[{"id":0},{"id":1},{"id":2}]}`, `1`, Number},
		{".items[1]", `{"items":[[9,9],[8,8]]}`, `[8,8]`, Array},
		{".items[2]", `{"items":[1,2],"items":[3]}`, ``, Missing},
		{".items[0]", `{"items":{"0":1}}`, ``, Missing},
		{".items[0]", `{"items":[]}`, ``, Missing},
		{".[1][0]", `[[1],[2]]`, `2`, Number},
		{".", ` {"a": 1} `, `{"a": 1}`, Object},
		{".", ` "a" `, `"a"`, String},
	}
	for _, tt := range tests {
		for _, content := range []bool{false, true} {
			f := mustFinder(t, &FinderOptions{Content: content}, tt.path)
			if err := f.Find([]byte(tt.doc)); err != nil {
				t.Errorf("%s in %s: %v", tt.path, tt.doc, err)
				continue
			}
			if raw, kind := f.Raw(0); string(raw) != tt.want || kind != tt.kind {
				t.Errorf("%s in %s is %s %q, want %s %q", tt.path, tt.doc, kind, raw, tt.kind, tt.want)
			}
		}
	}
}

func TestFindFollowsManyPathsInOnePass(t *testing.T) {
	t.Parallel()
	paths := []string{".a", ".a.b", ".a.c[0]", ".d", ".a", ".", ".a.c[0]"}
	f := mustFinder(t, nil, paths...)
	doc := `{"d":1,"a":{"b":0},"a":{"c":["x"],"b":2}}`
	if err := f.Find([]byte(doc)); err != nil {
		t.Fatal(err)
	}
	want := []string{`{"c":["x"],"b":2}`, `2`, `"x"`, `1`, `{"c":["x"],"b":2}`, doc, `"x"`}
	for i := range paths {
		if raw, _ := f.Raw(i); string(raw) != want[i] {
			t.Errorf("%s is %s, want %s", paths[i], raw, want[i])
		}
	}
}

func TestFindRefusesInvalidJSONAndNamesTheOffset(t *testing.T) {
	t.Parallel()
	tests := []struct {
		doc string
		at  int
		bad string
	}{
		{``, 0, badEnd},
		{`  `, 2, badEnd},
		{`{`, 1, badEnd},
		{`[1`, 2, badEnd},
		{`{"a"`, 4, badEnd},
		{`{"a":`, 5, badEnd},
		{`{"a":1`, 6, badEnd},
		{`{"a":1,`, 7, badEnd},
		{`{"a":1,}`, 7, badName},
		{`{a:1}`, 1, badName},
		{`{"a" 1}`, 5, badColon},
		{`{"a":1 "b":2}`, 7, badInObject},
		{`{"a":1]`, 6, badInObject},
		{`[1}`, 2, badInArray},
		{`[1,]`, 3, badValue},
		{`[,1]`, 1, badValue},
		{`{"a":1}{`, 7, badTrailing},
		{`1 2`, 2, badTrailing},
		{`01`, 1, badTrailing},
		{`-`, 1, badEnd},
		{`-a`, 1, badNumber},
		{`1.`, 2, badEnd},
		{`1.e1`, 2, badNumber},
		{`[1e+]`, 4, badNumber},
		{`+1`, 0, badValue},
		{`tru`, 0, badValue},
		{`nulL`, 0, badValue},
		{`NaN`, 0, badValue},
		{`'a'`, 0, badValue},
		{`"a`, 2, badEnd},
		{`"abcdefgh` + "\n" + `ijk"`, 9, badControl},
		{`"abcdefgh` + "\x1f" + `ijklmnopq"`, 9, badControl},
		{`"\x"`, 2, badEscape},
		{`"\`, 2, badEnd},
		{`"\u12`, 5, badEnd},
		{`"\u12g4"`, 5, badHex},
		{"\ufeff1", 0, badValue},
		{"1\x00", 1, badTrailing},
		{strings.Repeat("[", maxDepth+1), maxDepth, badTooNested},
		{strings.Repeat(`{"":`, maxDepth+1), 4 * maxDepth, badTooNested},
	}
	for _, tt := range tests {
		for _, content := range []bool{false, true} {
			f := mustFinder(t, &FinderOptions{Content: content}, ".a")
			err := f.Find([]byte(tt.doc))
			var syntax *SyntaxError
			if !errors.As(err, &syntax) || !errors.Is(err, ErrSyntax) {
				t.Errorf("%.40q: error %v, want a SyntaxError", tt.doc, err)
				continue
			}
			if syntax.Offset != tt.at || syntax.Problem != tt.bad {
				t.Errorf("%.40q: %q at %d, want %q at %d", tt.doc, syntax.Problem, syntax.Offset, tt.bad, tt.at)
			}
			if json.Valid([]byte(tt.doc)) {
				t.Errorf("%.40q: encoding/json accepts it", tt.doc)
			}
			if raw, kind := f.Raw(0); raw != nil || kind != Missing {
				t.Errorf("%.40q: a value is left after an error: %s %q", tt.doc, kind, raw)
			}
			if id, idErr := f.AppendID(nil); idErr != err || id != nil {
				t.Errorf("%.40q: AppendID gives %q, %v after a failed Find", tt.doc, id, idErr)
			}
		}
	}
}

func TestFindAcceptsTheDepthThatEncodingJSONAccepts(t *testing.T) {
	t.Parallel()
	doc := []byte(strings.Repeat("[", maxDepth) + strings.Repeat("]", maxDepth))
	if !json.Valid(doc) {
		t.Fatal("encoding/json refuses the document")
	}
	if err := mustFinder(t, nil, ".").Find(doc); err != nil {
		t.Fatal(err)
	}
}

func TestAppendIDEncodesTypeAndValue(t *testing.T) {
	t.Parallel()
	tests := []struct{ doc, want string }{
		{`{"id":"abc"}`, "abc"},
		{`{"id":"42"}`, "42"},
		{`{"id":42}`, "\x00n42"},
		{`{"id":1.0}`, "\x00n1.0"},
		{`{"id":12345678901234567890}`, "\x00n12345678901234567890"},
		{`{"id":true}`, "\x00t"},
		{`{"id":false}`, "\x00f"},
		{`{"id":"\u0061\n\/"}`, "a\n/"},
		{`{"id":"\b\f\n\r\t\/\\\""}`, "\b\f\n\r\t/\\\""},
		{`{"id":"\u0000n42"}`, "\x00s\x00n42"},
		{`{"id":" a "}`, " a "},
		{`{"id":"\ud83d\ude00"}`, "😀"},
		{`{"id":"\ufffd"}`, "\ufffd"},
		{"{\"id\":\"\xff\"}", "\xff"},
		{`{"id":"\uD800"}`, "\x00u\"\\ud800\""},
		{`{"id":"a\udc00\ud83d\ude00\n"}`, "\x00u\"a\\udc00😀\\n\""},
		{"{\"id\":\"\xed\xa0\x80\"}", "\xed\xa0\x80"},
	}
	for _, tt := range tests {
		f := mustFinder(t, nil, ".id")
		if err := f.Find([]byte(tt.doc)); err != nil {
			t.Fatal(err)
		}
		got, err := f.AppendID([]byte("before"))
		if err != nil || string(got) != "before"+tt.want {
			t.Errorf("%s gives %q, %v; want %q", tt.doc, got, err, "before"+tt.want)
		}
	}
}

func TestAppendIDOfSeveralPathsIsAComposite(t *testing.T) {
	t.Parallel()
	f := mustFinder(t, nil, ".a", ".b")
	seen := map[string]string{}
	for _, doc := range []string{
		`{"a":"x","b":"yz"}`, `{"a":"xy","b":"z"}`, `{"a":"x","b":1}`, `{"a":"x","b":"1"}`,
		`{"a":"x","b":true}`, `{"a":"\u0001x","b":"y"}`, `{"a":"x\u0001","b":"y"}`,
	} {
		if err := f.Find([]byte(doc)); err != nil {
			t.Fatal(err)
		}
		id, err := f.AppendID(nil)
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := seen[string(id)]; ok {
			t.Errorf("%s and %s have one id %q", doc, other, id)
		}
		seen[string(id)] = doc
	}
	if got, want := seen["\x00c\x01x\x02yz"], `{"a":"x","b":"yz"}`; got != want {
		t.Errorf("the composite is not encoded as documented: %q", seen)
	}
}

func TestAppendIDRefusesValuesThatAreNotIDs(t *testing.T) {
	t.Parallel()
	wants := map[string]error{
		`{}`:                &MissingError{".a.id", Absent},
		`{"a":{"id":null}}`: &MissingError{".a.id", IsNull},
		`{"a":{"id":""}}`:   &MissingError{".a.id", IsEmpty},
		`{"a":{"id":{}}}`:   &NotScalarError{".a.id", Object},
		`{"a":{"id":[1]}}`:  &NotScalarError{".a.id", Array},
	}
	for doc, want := range wants {
		for _, paths := range [][]string{{".a.id"}, {".a.id", ".a.id"}} {
			f := mustFinder(t, nil, paths...)
			if err := f.Find([]byte(doc)); err != nil {
				t.Fatal(err)
			}
			id, err := f.AppendID([]byte("before"))
			if fmt.Sprintf("%T %v", err, err) != fmt.Sprintf("%T %v", want, want) {
				t.Errorf("%s: error %v, want %v", doc, err, want)
			}
			if string(id) != "before" {
				t.Errorf("%s: %q was appended", doc, id)
			}
		}
	}
}

func TestAFinderWithoutADocumentOrAPathGivesNoID(t *testing.T) {
	t.Parallel()
	if id, err := mustFinder(t, nil, ".a").AppendID(nil); err == nil {
		t.Errorf("a finder without a document gave the id %q", id)
	}
	none := mustFinder(t, nil)
	if err := none.Find([]byte(`{"a":1}`)); err != nil {
		t.Fatal(err)
	}
	if id, err := none.AppendID(nil); err == nil {
		t.Errorf("a finder without paths gave the id %q", id)
	}
}

func TestFindAllocatesNothing(t *testing.T) {
	docs := [][]byte{
		[]byte(`{"event_id":"e1","\u0061":{"b":[1,2,{"c":"d\n"}]},"n":1.5,"t":true,"z":null}`),
		[]byte(`{"a":{"b":[]},"event_id":17}`),
		[]byte(`{"event_id":null}`),
		[]byte(`{"event_id":{}}`),
		[]byte(`{"event_id":{"a":1,"a":2},"b":[{"c":3}],"b":4}`),
	}
	f := mustFinder(t, &FinderOptions{Content: true}, ".event_id", ".a.b[1]")
	var id []byte
	allocs := testing.AllocsPerRun(100, func() {
		for _, doc := range docs {
			if err := f.Find(doc); err != nil {
				t.Fatal(err)
			}
			id, _ = f.AppendID(id[:0])
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations in %d documents", allocs, len(docs))
	}
}

// lookUp finds a path in a value that encoding/json decoded.
func lookUp(value any, p Path) (any, bool) {
	for _, s := range p.steps {
		if s.element {
			list, ok := value.([]any)
			if !ok || s.index >= len(list) {
				return nil, false
			}
			value = list[s.index]
			continue
		}
		object, _ := value.(map[string]any)
		v, ok := object[s.name]
		if !ok {
			return nil, false
		}
		value = v
	}
	return value, true
}

func decode(t testing.TB, doc []byte) any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(doc))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("encoding/json cannot decode %q: %v", doc, err)
	}
	return v
}

// replaced reports whether encoding/json may have replaced bytes in doc, so
// that what it says about values and names is not exact.
func replaced(t testing.TB, doc []byte, v any) bool {
	t.Helper()
	if !utf8.Valid(doc) {
		return true
	}
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.ContainsRune(text, utf8.RuneError)
}

func FuzzFinder(f *testing.F) {
	for _, doc := range []string{
		`{"event_id":"e","a":{"event_id":1,"b":[0,{"c":true}]},"n":-0.5e-7}`,
		`{"a":{"b":1},"a":{"c":2},"\u0061":null}`,
		`[[],{},"",0,"\ud83d\ude00","\ud800",1E400]`,
		`{"a":1,"b":{"c":[],"c":{}},"a":{"b":2,"b":{"a":{}}}}`,
		"{\"\xff\":\"\xff\"}", `{"a":tru}`, `{"a" :1 , "b": [ ] }`, `"`, `1.5.5`, "{\"a\":\"\t\"}",
	} {
		for _, path := range []string{".event_id", ".a.b[1].c", ".", `.["a"]`, ".[4]"} {
			f.Add([]byte(doc), path)
		}
	}
	f.Fuzz(func(t *testing.T, doc []byte, text string) {
		path, err := ParsePath(text)
		if err != nil {
			return // not a path; FuzzParseRule tests these
		}
		plain := mustFinder(t, nil, text, ".a.b", ".[0].a")
		content := mustFinder(t, &FinderOptions{Content: true}, text)
		err = plain.Find(doc)
		if got, want := err == nil, json.Valid(doc); got != want {
			t.Fatalf("accepted: %v (%v), encoding/json: %v", got, err, want)
		}
		// The finder's memory of earlier documents must not change the result.
		plain.Find(doc[len(doc)/2:])
		plain.Find(append([]byte(`{"a":{"b":`), doc...))
		if again := plain.Find(doc); fmt.Sprint(again) != fmt.Sprint(err) {
			t.Fatalf("the second time: %v, the first: %v", again, err)
		}
		content.Find(doc)
		if contentErr := content.Find(doc); fmt.Sprint(contentErr) != fmt.Sprint(err) {
			t.Fatalf("with content: %v, without: %v", contentErr, err)
		}
		raw, kind := plain.Raw(0)
		if raw2, kind2 := content.Raw(0); !bytes.Equal(raw, raw2) || kind != kind2 {
			t.Fatalf("with content: %s %q, without: %s %q", kind2, raw2, kind, raw)
		}
		if err != nil {
			return
		}
		value := decode(t, doc)
		if replaced(t, doc, value) {
			return
		}
		again, err := json.Marshal(value) // members sorted, none repeated
		if err != nil {
			t.Fatal(err)
		}
		content.Find(doc)
		if print := content.Print(); print != printOf(t, content, string(again)) {
			t.Fatalf("another print than %s", again)
		}
		content.Find(doc)
		want, ok := lookUp(value, path)
		if ok != (kind != Missing) {
			t.Fatalf("%s: kind %s, encoding/json found it: %v", path, kind, ok)
		}
		if !ok {
			return
		}
		got, wantText := decode(t, raw), fmt.Sprintf("%#v", want)
		if gotText := fmt.Sprintf("%#v", got); gotText != wantText {
			t.Fatalf("%s: %s, encoding/json: %s", path, gotText, wantText)
		}
		id, err := content.AppendID(nil)
		switch v := want.(type) {
		case string:
			wantID := AppendString(nil, v)
			if v == "" && !errors.Is(err, ErrMissing) || v != "" && !bytes.Equal(id, wantID) {
				t.Fatalf("id %q, %v; want %q", id, err, wantID)
			}
		case json.Number:
			if string(id) != "\x00n"+v.String() {
				t.Fatalf("id %q, %v; want number %s", id, err, v)
			}
		}
	})
}

func TestAFinderRefusesMorePathsThanItsLimit(t *testing.T) {
	t.Parallel()
	if _, err := NewFinder(make([]Path, maxPaths+1), nil); err == nil || err.Error() != "key: a finder has at most 1000 paths, not 1001" {
		t.Errorf("error %v", err)
	}
	if _, err := NewFinder(make([]Path, maxPaths), nil); err != nil {
		t.Error(err)
	}
}
