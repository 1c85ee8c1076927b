package key

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
)

func TestCanonicalFormDependsOnContentAlone(t *testing.T) {
	t.Parallel()
	tests := []struct{ doc, want string }{
		{` { "b" : 1 , "a" : [ 1 , 2 ] } `, `{"a":[1,2],"b":1}`},
		{`{"b":{"d":1,"c":{}},"a":[{"z":0,"y":[]},{ }]}`, `{"a":[{"y":[],"z":0},{}],"b":{"c":{},"d":1}}`},
		{`[1,1.0,1e0,-0,12345678901234567890,1E+2]`, `[1,1.0,1e0,-0,12345678901234567890,1E+2]`},
		{`"\u0061\/\u0022\\\u000a\u0001\u007f\u00e9"`, `"a/\"\\\n\u0001` + "\x7f" + `é"`},
		{`"\ud83d\ude00\uD800\udc00x\ude00\ud800"`, `"😀𐀀x\ude00\ud800"`},
		{"\"\xff\xed\xa0\x80\"", "\"\xff\xed\xa0\x80\""},
		{`{"\u0062":1,"a":2}`, `{"a":2,"b":1}`},
		{`{"aa":1,"a":2,"":3,"é":4,"z":5}`, `{"":3,"a":2,"aa":1,"z":5,"é":4}`},
		{`{"a":{"b":1},"c":{"b":1}}`, `{"a":{"b":1},"c":{"b":1}}`},
		{`[ [ ] , [ { "a" : "x" } , null , true , false ] ]`, `[[],[{"a":"x"},null,true,false]]`},
		{`{"\ud800":1,"` + "\xed\xa0\x80" + `":2}`, `{"\ud800":1,"` + "\xed\xa0\x80" + `":2}`},
		{`"\b\f\n\r\t\/\\\""`, `"\b\f\n\r\t/\\\""`},
		{`"\u0008\u000C\u000a\u000D\u0009\u001F\u002f"`, `"\b\f\n\r\t\u001f/"`},
		{` 1 `, `1`},
	}
	for _, tt := range tests {
		got, err := appendCanonical([]byte("before"), []byte(tt.doc))
		if err != nil || string(got) != "before"+tt.want {
			t.Errorf("%s: %s, %v; want %s", tt.doc, got, err, tt.want)
		}
	}
}

// is reports whether an error is of type E, or wraps one that is.
func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

func TestCanonicalFormOfAnObjectWithADuplicateNameIsRefused(t *testing.T) {
	t.Parallel()
	for _, doc := range []string{
		`[0,{"a":1,"b":2,"a":1}]`, `{"x":{"a":1,"\u0061":2}}`, `{"a\n":1,"a\u000a":1}`,
	} {
		got, err := appendCanonical([]byte("before"), []byte(doc))
		var duplicate *DuplicateNameError
		if !errors.As(err, &duplicate) {
			t.Errorf("%s: error %v", doc, err)
			continue
		}
		if object := doc[duplicate.Offset:]; object[0] != '{' || !strings.HasPrefix(duplicate.Name, "a") {
			t.Errorf("%s: the error names %q at %q", doc, duplicate.Name, object)
		}
		if string(got) != "before" {
			t.Errorf("%s: %q was appended", doc, got)
		}
	}
	if _, err := appendCanonical(nil, []byte(`{"a":{"a":1},"b":{"a":1}}`)); err != nil {
		t.Errorf("one name in two objects is refused: %v", err)
	}
	if _, err := appendCanonical(nil, []byte(`{"a":`)); !errors.Is(err, ErrSyntax) {
		t.Errorf("an unfinished document gives %v", err)
	}
}

func TestCanonicalFormOfADeepDocumentTakesLinearTime(t *testing.T) {
	t.Parallel()
	// A form that copied each object to sort it would move 10,000 times the
	// text in the middle: for 4 MiB, 40 GiB.
	var doc bytes.Buffer
	for range maxDepth - 1 {
		doc.WriteString(`{"b":`)
	}
	fmt.Fprintf(&doc, `%q`, strings.Repeat("x", 4<<20))
	for range maxDepth - 1 {
		doc.WriteString(`,"a":0}`)
	}
	got, err := appendCanonical(nil, doc.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(got, []byte(`{"a":0,"b":{"a":0,"b":`)) || len(got) != doc.Len() {
		t.Errorf("the form is %d bytes %.40q", len(got), got)
	}
}

func TestContentIDIsTheHashOfTheCanonicalForm(t *testing.T) {
	t.Parallel()
	sum := sha256.Sum256([]byte(`{"a":1,"b":2}`))
	want := "\x00h" + string(sum[:])
	got, err := Content([]byte(`{"b":2, "a":1}`))
	if err != nil || got != want {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
	f := mustFinder(t, nil)
	if err := f.Find([]byte(`{ "b":2,"\u0061":1}`)); err != nil {
		t.Fatal(err)
	}
	if got, err := f.AppendContent([]byte("before")); err != nil || string(got) != "before"+want {
		t.Errorf("the finder gives %q, %v", got, err)
	}
	for doc, wanted := range map[string]func(error) bool{"{": is[*SyntaxError], `{"a":1,"a":1}`: is[*DuplicateNameError]} {
		if id, err := Content([]byte(doc)); !wanted(err) || id != "" {
			t.Errorf("%s gives %q, %v", doc, id, err)
		}
		findErr := f.Find([]byte(doc))
		if id, err := f.AppendContent([]byte("before")); !wanted(err) || findErr != nil && err != findErr || string(id) != "before" {
			t.Errorf("the finder gives %q, %v for %s", id, err, doc)
		}
	}
}

// shuffle rewrites a document: members in another order, white space and
// escapes at random, and the same content.
func shuffle(random *rand.Rand, dst []byte, value any) []byte {
	space := func() {
		for random.IntN(4) == 0 {
			dst = append(dst, " \t\r\n"[random.IntN(4)])
		}
	}
	space()
	switch v := value.(type) {
	case map[string]any:
		names := make([]string, 0, len(v))
		for name := range v {
			names = append(names, name)
		}
		random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		dst = append(dst, '{')
		for i, name := range names {
			if i > 0 {
				dst = append(dst, ',')
			}
			space()
			dst = escape(random, dst, name)
			space()
			dst = append(dst, ':')
			dst = shuffle(random, dst, v[name])
		}
		space()
		dst = append(dst, '}')
	case []any:
		dst = append(dst, '[')
		for i, element := range v {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = shuffle(random, dst, element)
		}
		space()
		dst = append(dst, ']')
	case string:
		dst = escape(random, dst, v)
	case json.Number:
		dst = append(dst, v...)
	default:
		dst = fmt.Append(dst, map[any]string{nil: "null", true: "true", false: "false"}[v])
	}
	space()
	return dst
}

// escape writes a string with escapes at random.
func escape(random *rand.Rand, dst []byte, s string) []byte {
	dst = append(dst, '"')
	for _, r := range s {
		switch {
		case r > 0xFFFF:
			dst = append(dst, string(r)...)
		case random.IntN(3) == 0 || r < ' ' || r == '"' || r == '\\':
			dst = fmt.Appendf(dst, []string{`\u%04x`, `\u%04X`}[random.IntN(2)], r)
		default:
			dst = append(dst, string(r)...)
		}
	}
	return append(dst, '"')
}

func FuzzCanonical(f *testing.F) {
	for _, doc := range []string{
		`{"b":[1,{"d":null,"c":"\u0041"}],"a":{"":1.0,"x":{}}}`, `[1E400,-0,"\ud83d\ude00"]`,
		`{"a":1,"\u0061":2}`, `"\ud800"`, "{\"\xff\":1,\"\xfe\":2}", `{"a":{"b":{"c":{"e":1,"d":2}}}} `,
		`{"é":1,"e":2,"\n":3,"\"":4}`,
	} {
		f.Add([]byte(doc), uint64(1))
	}
	f.Fuzz(func(t *testing.T, doc []byte, seed uint64) {
		canonical, err := appendCanonical(nil, doc)
		if valid := json.Valid(doc); valid == errors.Is(err, ErrSyntax) {
			t.Fatalf("error %v, but encoding/json says valid: %v", err, valid)
		}
		if err != nil {
			return
		}
		if again, err := appendCanonical(nil, canonical); err != nil || !bytes.Equal(again, canonical) {
			t.Fatalf("not idempotent: %q, then %q, %v", canonical, again, err)
		}
		print := func(doc []byte) uint64 {
			f := mustFinder(t, &FinderOptions{Content: true, Seed: seed})
			if err := f.Find(doc); err != nil {
				t.Fatalf("%q: %v", doc, err)
			}
			return f.Print()
		}
		if print(doc) != print(canonical) {
			t.Fatalf("%q and its canonical form %q have two prints", doc, canonical)
		}
		value := decode(t, doc)
		if replaced(t, doc, value) {
			return
		}
		if !reflect.DeepEqual(value, decode(t, canonical)) {
			t.Fatalf("%q became %q", doc, canonical)
		}
		other := shuffle(rand.New(rand.NewPCG(seed, 0)), nil, value)
		got, err := appendCanonical(nil, other)
		if err != nil || !bytes.Equal(got, canonical) {
			t.Fatalf("%q gives %q, but %q gives %q, %v", doc, canonical, other, got, err)
		}
		if print(other) != print(doc) {
			t.Fatalf("%q and %q have two prints", doc, other)
		}
	})
}
