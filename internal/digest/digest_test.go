package digest_test

import (
	"encoding/hex"
	"testing"

	"github.com/dchest/siphash"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/digest"
)

// This is the reference vector of SipHash-2-4-128 for an empty message under
// the key 00 01 … 0f, from the authors of the function (vectors_sip128, entry
// 0).
func TestDigestFunctionIsSipHash128(t *testing.T) {
	a, b := siphash.Hash128(0x0706050403020100, 0x0f0e0d0c0b0a0908, nil)
	if a != 0xe6a825ba047f81a3 || b != 0x930255c71472f66d {
		t.Fatalf("got %x %x", a, b)
	}
}

// Digests are on disk, so they must not change.
func TestDigestsStayAsTheyAre(t *testing.T) {
	h := digest.New(digest.Secret{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15})
	got := h.Key(semel.Key{Scope: "orders", ID: "order-1"})
	if want := "63aeafacab7984686b2b8b97fa54c33a"; hex.EncodeToString(got[:]) != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestScopeAndIDDoNotRunTogether(t *testing.T) {
	h := digest.New(digest.NewSecret())
	seen := map[semel.Digest]semel.Key{}
	for _, k := range []semel.Key{{Scope: "ab", ID: "c"}, {Scope: "a", ID: "bc"}, {ID: "abc"}, {Scope: "abc"}, {Scope: "ab\x00", ID: "c"}, {Scope: "ab", ID: "\x00c"}} {
		d := h.Key(k)
		if other, ok := seen[d]; ok {
			t.Errorf("%v and %v have one digest", k, other)
		}
		seen[d] = k
		memo := digest.Memo{Hasher: h}
		for range 2 { // the scope is new in the first round and remembered in the second
			if memo.Key(k) != d {
				t.Errorf("the memo digests %v differently", k)
			}
		}
	}
}

func TestSecretsSeparateStores(t *testing.T) {
	k := semel.Key{ID: "a"}
	one, other := digest.New(digest.NewSecret()), digest.New(digest.NewSecret())
	if one.Key(k) == other.Key(k) {
		t.Error("two secrets gave one digest")
	}
}
