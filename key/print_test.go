package key

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"testing"
)

func printOf(t testing.TB, f *Finder, doc string) uint64 {
	t.Helper()
	if err := f.Find([]byte(doc)); err != nil {
		t.Fatalf("%s: %v", doc, err)
	}
	return f.Print()
}

func TestEqualContentHasEqualFingerprints(t *testing.T) {
	t.Parallel()
	f := mustFinder(t, &FinderOptions{Content: true, Seed: 7}, ".a")
	for _, docs := range [][]string{
		{`{"a":1,"b":[true,null],"c":{"d":"x","e":2}}`, `{"c":{"e":2,"d":"x"},"b":[true,null],"a":1}`,
			" {\n \"b\" : [ true , null ] , \"a\" : 1 , \"c\" : { \"d\" : \"x\" , \"e\" : 2 } } "},
		{`"abcdefgh/\n"`, `"\u0061bcdefgh\/\u000a"`},
		{`{"long name of a member that no memo holds":"é"}`, `{"long name of a member that no memo hold\u0073":"\u00e9"}`},
		{`12345678901234567890`, ` 12345678901234567890 `},
		{`{}`, `{ }`}, {`[]`, `[ ]`},
	} {
		for _, doc := range docs {
			if printOf(t, f, doc) != printOf(t, f, docs[0]) {
				t.Errorf("%s and %s have two prints", docs[0], doc)
			}
		}
	}
}

func TestDifferentContentHasDifferentFingerprints(t *testing.T) {
	t.Parallel()
	docs := []string{
		`1`, `"1"`, `1.0`, `1e0`, `-1`, `10`, `true`, `"true"`, `false`, `null`, `""`, `"\u0000"`, `"\u0000\u0000"`,
		`[]`, `[[]]`, `[[],[]]`, `[[[]]]`, `{}`, `[{}]`, `{"":{}}`, `{"":""}`, `{"":[]}`,
		`[1,2]`, `[2,1]`, `[12]`, `[[1],2]`, `[1,[2]]`, `[1,1]`, `[1,1,1]`,
		`{"a":"b"}`, `{"b":"a"}`, `{"a":1,"b":2}`, `{"a":2,"b":1}`, `{"a":1}`, `{"a":{"b":1},"c":{}}`, `{"a":{},"c":{"b":1}}`,
		`{"a":{"b":1,"c":{}}}`, `"12345678"`, `"123456789"`, `"1234567"`, `"12345678\u0000"`, `"abcdefgh12345678"`, `"12345678abcdefgh"`,
		`"\ud800"`, "\"\xed\xa0\x80\"", "\"\xff\"", `"\ufffd"`, `"é"`, `"e\u0301"`,
	}
	for _, seed := range []uint64{0, 1, 1 << 63} {
		f := mustFinder(t, &FinderOptions{Content: true, Seed: seed})
		seen := map[uint64]string{}
		for _, doc := range docs {
			p := printOf(t, f, doc)
			if other, ok := seen[p]; ok {
				t.Errorf("%s and %s have one print", other, doc)
			}
			seen[p] = doc
		}
	}
}

func TestFingerprintsUseAllBits(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	f := mustFinder(t, &FinderOptions{Content: true, Seed: seed})
	const docs = 20_000
	var ones [64]int
	seen := make(map[uint64]bool, docs)
	for i := range docs {
		doc := fmt.Sprintf(`{"id":%d,"name":"user %d","on":[true,{"x":"y"}]}`, i, i/2)
		p := printOf(t, f, doc)
		if seen[p] {
			t.Fatalf("%s has the print of another", doc)
		}
		seen[p] = true
		for w := p; w != 0; w &= w - 1 {
			ones[bits.TrailingZeros64(w)]++
		}
	}
	for bit, n := range ones { // six standard deviations
		if n < docs/2-430 || n > docs/2+430 {
			t.Errorf("bit %d is set in %d of %d prints", bit, n, docs)
		}
	}
}

func TestFingerprintFunctionOfASeedIsStable(t *testing.T) {
	t.Parallel()
	// Stores keep prints. If this test fails, all kept prints are invalid.
	const doc = `{"event_id":"0c53b6c8-9a7e-4d0b-8f5e-2f1f6a3b9d11","n":-1.5e3,"list":[true,false,null,{"\u00e9":"\ud83d\ude00"}]}`
	for seed, want := range map[uint64]uint64{0: 0x780ca32139f9784d, 42: 0xb39a7bd3a10e2ea6} {
		f := mustFinder(t, &FinderOptions{Content: true, Seed: seed})
		if got := printOf(t, f, doc); got != want {
			t.Errorf("seed %d: %#x, want %#x", seed, got, want)
		}
	}
}

func TestFinderForgetsThePreviousDocument(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	names := []string{`"id"`, `"a"`, `"\u0069d"`, ` "id" `, `"idx"`, `"event_identifier"`, `"a name of more than 32 bytes, all told"`, `"i"`}
	values := []string{`1`, `"x"`, `"12345678"`, `{}`, `[]`, `null`, `{"id":2}`, `{"a":3,"id":{"id":4}}`, `[{"id":5},{"a":6}]`}
	paths := []string{".id", ".a.id", ".id.id", ".a[0].id", ".event_identifier"}
	used := mustFinder(t, &FinderOptions{Content: true}, paths...)
	for range 4000 {
		doc := "{"
		for i := range random.IntN(6) {
			if i > 0 {
				doc += ","
			}
			doc += names[random.IntN(len(names))] + ":" + values[random.IntN(len(values))]
		}
		if random.IntN(20) > 0 { // else it is broken
			doc += "}"
		}
		fresh := mustFinder(t, &FinderOptions{Content: true}, paths...)
		errUsed, errFresh := used.Find([]byte(doc)), fresh.Find([]byte(doc))
		if fmt.Sprint(errUsed) != fmt.Sprint(errFresh) || errFresh == nil && used.Print() != fresh.Print() {
			t.Fatalf("%s: %v %x, fresh %v %x", doc, errUsed, used.Print(), errFresh, fresh.Print())
		}
		for i := range paths {
			a, kindA := used.Raw(i)
			b, kindB := fresh.Raw(i)
			if string(a) != string(b) || kindA != kindB {
				t.Fatalf("%s: %s is %s %q, fresh %s %q", doc, paths[i], kindA, a, kindB, b)
			}
		}
	}
}

func TestFingerprintUsesTheLastOfDuplicateMembers(t *testing.T) {
	t.Parallel()
	f := mustFinder(t, &FinderOptions{Content: true, Seed: 3}, ".id")
	for doc, plain := range map[string]string{
		`{"id":1,"a":1,"a":2}`:                                    `{"id":1,"a":2}`,
		`{"a":1,"id":1,"a":2,"\u0061":3}`:                         `{"id":1,"a":3}`,
		`{"id":"b","id":true}`:                                    `{"id":true}`,
		`{"a":1,"a":1}`:                                           `{"a":1}`,
		`{"a":{"b":1},"a":{"c":2}}`:                               `{"a":{"c":2}}`,
		`{"a":{"b":1,"b":[]},"c":[{"d":1,"d":{}},{}]}`:            `{"a":{"b":[]},"c":[{"d":{}},{}]}`,
		`[{"a":{"a":1,"a":{"a":2,"a":3}},"a":{"a":{"a":4}}},"x"]`: `[{"a":{"a":{"a":4}}},"x"]`,
		`{"":1, "" : -2.5e3 ,"b":[ ]}`:                            `{"b":[],"":-2.5e3}`,
		`{"\ud800":1,"\ufffd":2,"\ud800":3}`:                      `{"\ud800":3,"\ufffd":2}`,
	} {
		for range 2 { // the memory of the first run must not change the result
			if printOf(t, f, doc) != printOf(t, f, plain) {
				t.Errorf("%s and %s have two prints", doc, plain)
			}
		}
	}
	if printOf(t, f, `{"a":1,"a":2}`) == printOf(t, f, `{"a":2,"a":1}`) {
		t.Error("the last of two members does not count")
	}
}

// randomDoc returns a document in which names are often repeated.
func randomDoc(random *rand.Rand, depth int) string {
	text := ""
	switch kind := random.IntN(5); {
	case kind < 2 && depth > 0:
		for i := range random.IntN(5) {
			if i > 0 {
				text += ","
			}
			name := []string{`"a"`, `"b"`, `"\u0061"`, ` "c" `, `"a long name of some thirty bytes"`}[random.IntN(5)]
			text += name + ":" + randomDoc(random, depth-1)
		}
		return "{" + text + "}"
	case kind == 2 && depth > 0:
		for i := range random.IntN(3) {
			if i > 0 {
				text += ", "
			}
			text += randomDoc(random, depth-1)
		}
		return "[" + text + "]"
	}
	return []string{"1", "2", "true", `"x"`, `"\u0078"`, "null"}[random.IntN(6)]
}

func TestFingerprintsAreEqualExactlyForEqualDecodedValues(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	f := mustFinder(t, &FinderOptions{Content: true})
	docs := map[uint64]string{}   // by print
	prints := map[string]uint64{} // by decoded value
	for range 20_000 {
		doc := randomDoc(random, 3)
		p, value := printOf(t, f, doc), fmt.Sprintf("%#v", decode(t, []byte(doc)))
		if before, ok := prints[value]; ok && before != p {
			t.Fatalf("%s has another print than %s", doc, docs[before])
		}
		if other, ok := docs[p]; ok && fmt.Sprintf("%#v", decode(t, []byte(other))) != value {
			t.Fatalf("%s has the print of %s", doc, other)
		}
		prints[value], docs[p] = p, doc
	}
}
