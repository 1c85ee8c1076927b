package header

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"

	"github.com/semel-dev/semel/pipeline"
)

// OnceID returns the id by which a broker that drops known ids stores an output once. All
// attempts for a key have the same id, even if a copy of the message with other bytes is the
// next one that is tried. An output of another pipeline or key, to another target, or of a
// redriven message has another id. Otherwise the broker would drop it and report success.
//
// The id has scope and id of the key, for people, if both are visible ASCII and it has at
// most longest bytes, and a digest of everything. target names all that decides where the
// broker puts the message.
func OnceID(it *pipeline.Item, name, target string, longest int) string {
	key := it.Call.Key
	h := sha256.New()
	for _, part := range []string{name, key.Scope, key.ID, target, strconv.Itoa(it.Redrive)} {
		_, _ = fmt.Fprintf(h, "%d:%s", len(part), part) // a hash takes everything
	}
	digest := "#" + base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:16])
	id := key.Scope + ":" + key.ID
	if len(id)+len(digest) > longest || strings.ContainsFunc(id, func(c rune) bool { return c < '!' || c > '~' }) {
		return digest[1:]
	}
	return id + digest
}
