package httpidem

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"hash"
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/coding"
	"github.com/semel-dev/semel/internal/invalid"
	"github.com/semel-dev/semel/internal/jsontext"
)

// FingerprintOptions say what of a request's JSON body must be the same when the request
// is repeated. Method, host, path and query must be the same in any case. Headers may
// differ, such as a token that was renewed.
//
// A canonical form is compared if any of the fields is set: white space and the order of
// members do not count. Numbers and strings count as they are written, so that 1 and 1.0
// differ, and a name that comes twice counts twice. Members that are more than 32 levels
// deep are compared byte by byte.
//
// A body with Content-Encoding gzip or deflate is decompressed before it is compared. A
// body that is not JSON is compared byte by byte, except one that is multipart: its parts
// are compared, in their order, because a client chooses a new boundary each time.
type FingerprintOptions struct {
	// Include are JSON pointers (RFC 6901) to the values that count. A body that has
	// none of them counts as a whole. Defaults to the whole body.
	Include []string
	// Exclude are JSON pointers to values that do not count, such as the time at which
	// the client signed the request. Defaults to none.
	Exclude []string
	// CanonicalJSON compares the canonical form of the whole body. Include and Exclude
	// imply it.
	CanonicalJSON bool
}

// printer makes fingerprints.
type printer struct {
	canonical        bool
	include, exclude *tree // nil if empty
	digests          sync.Pool
	most             int64 // bytes of a body that is decompressed
}

func (o *FingerprintOptions) complete(wrong *invalid.List) *printer {
	set := func(field string, pointers []string) *tree {
		var t *tree
		for _, text := range pointers {
			path, err := pointer(text)
			if err != nil {
				wrong.Add("Fingerprint.%s: %w", field, err)
				continue
			}
			if t == nil {
				t = &tree{}
			}
			t.add(path)
		}
		return t
	}
	p := &printer{include: set("Include", o.Include), exclude: set("Exclude", o.Exclude)}
	p.canonical = o.CanonicalJSON || p.include != nil || p.exclude != nil
	return p
}

// of returns the fingerprint of a request: a digest of method, host, path, query and
// body, and of the time at which it was sent first, if the client must say so. A compressed
// body needs memory until of returns; without it, the error is errNoMemory.
func (p *printer) of(r *http.Request, body []byte, firstSent string, in *memoryBudget) (semel.Fingerprint, error) {
	plain := reservation{of: in}
	defer plain.end()
	body, err := p.content(r, body, &plain)
	if err != nil {
		return semel.Fingerprint{}, err
	}
	d, ok := p.digests.Get().(*digest)
	if !ok {
		d = &digest{sum: sha256.New()}
	}
	defer p.digests.Put(d)
	d.sum.Reset()
	host := strings.ToLower(r.Host)
	host = strings.TrimSuffix(strings.TrimSuffix(host, ":443"), ":80") // clients may leave them out
	for _, text := range []string{r.Method, host, r.URL.EscapedPath(), r.URL.RawQuery, firstSent} {
		d.memory = append(binary.BigEndian.AppendUint64(d.memory[:0], uint64(len(text))), text...)
		d.sum.Write(d.memory)
	}
	if !p.json(d, body) && !parts(d, r.Header.Get("Content-Type"), body) {
		d.add(body)
	}
	d.memory = d.sum.Sum(d.memory[:0])
	return semel.Fingerprint(d.memory[:16]), nil
}

// content returns a body without its compression, which may differ when a client compresses
// it again. A body that cannot be decompressed, or is then too long, is compared as it is.
func (p *printer) content(r *http.Request, body []byte, memory *reservation) ([]byte, error) {
	codings, known := coding.Of(r.Header, nil)
	if len(codings) == 0 || !known {
		return body, nil
	}
	decoder := codings.Reader(bytes.NewReader(body), p.most)
	defer decoder.Close()
	plain, err := io.ReadAll(&budgetReader{decoder, memory})
	switch {
	case errors.Is(err, errNoMemory):
		return nil, err
	case err != nil:
		return body, nil
	}
	return plain, nil
}

// errNoMemory is the error of a request for which there is no memory.
var errNoMemory = errors.New("httpidem: the requests in progress take all memory")

// budgetReader is a reader that takes memory for all that is read.
type budgetReader struct {
	io.Reader
	memory *reservation
}

// Read implements io.Reader.
func (r *budgetReader) Read(into []byte) (int, error) {
	n, err := r.Reader.Read(into)
	if !r.memory.takeWhole(int64(n)) {
		return 0, errNoMemory
	}
	return n, err
}

// digest is a digest of a list of texts: each has its length before it.
type digest struct {
	sum    hash.Hash
	memory []byte
}

func (d *digest) add(text []byte) {
	d.memory = binary.BigEndian.AppendUint64(d.memory[:0], uint64(len(text)))
	d.sum.Write(d.memory)
	d.sum.Write(text)
}

// json adds the canonical form of a body. If that is not what counts, it adds nothing and
// returns false.
func (p *printer) json(d *digest, body []byte) bool {
	if !p.canonical || !json.Valid(body) {
		return false
	}
	c := canonical{}
	c.add(jsontext.Trim(body), p.include, p.exclude, p.include == nil, 0)
	if !c.found {
		return false
	}
	d.add([]byte("json"))
	d.add(c.form)
	return true
}

// canonical makes the canonical form of a JSON value.
type canonical struct {
	form  []byte
	found bool // it has something that counts
}

// add adds a value. inside says that it counts; otherwise only those of its members count
// to which include leads.
func (c *canonical) add(value []byte, include, exclude *tree, inside bool, depth int) {
	inside = inside || include != nil && include.ends
	c.found = c.found || inside
	if value[0] != '{' && value[0] != '[' || depth == maxDepth {
		if inside {
			c.form = append(c.form, value...)
		}
		return
	}
	c.form = append(c.form, value[0])
	member := func(name childName, v []byte) {
		out, in := exclude.at(name.decoded), include.at(name.decoded)
		if out != nil && out.ends || !inside && in == nil {
			return
		}
		c.form = append(append(c.form, name.literal...), ':')
		c.add(v, in, out, inside, depth+1)
		c.form = append(c.form, ',')
	}
	if value[0] == '[' {
		for index, v := range children(value) {
			member(index, v)
		}
		c.form = append(c.form, ']')
		return
	}
	type pair struct {
		name  childName
		value []byte
	}
	var members []pair
	for name, v := range children(value) {
		members = append(members, pair{name, v})
	}
	// Members of one name keep their order.
	slices.SortStableFunc(members, func(a, b pair) int { return cmp.Compare(a.name.decoded, b.name.decoded) })
	for _, m := range members {
		member(m.name, m.value)
	}
	c.form = append(c.form, '}')
}

// parts adds the parts of a multipart body. If the body is another one, or malformed, it adds
// nothing and returns false.
func parts(d *digest, contentType string, body []byte) bool {
	if !strings.HasPrefix(contentType, "multipart/") && !strings.HasPrefix(strings.ToLower(contentType), "multipart/") {
		return false
	}
	kind, params, err := mime.ParseMediaType(contentType)
	if err != nil || params["boundary"] == "" || !bytes.Contains(body, []byte("--"+params["boundary"]+"--")) {
		return false // without its end, a body is malformed
	}
	list := digest{sum: sha256.New()}
	reader := multipart.NewReader(bytes.NewReader(body), params["boundary"])
	for n := 0; ; n++ {
		part, err := reader.NextRawPart()
		if errors.Is(err, io.EOF) && n > 0 {
			break
		}
		if err != nil {
			return false
		}
		content, err := io.ReadAll(part)
		if err != nil {
			return false
		}
		for _, name := range slices.Sorted(maps.Keys(part.Header)) {
			list.add([]byte(name))
			list.add([]byte(strings.Join(part.Header[name], "\n")))
		}
		list.add(nil) // no header has an empty name
		list.add(content)
	}
	d.add([]byte(kind))
	d.add(list.sum.Sum(nil))
	return true
}
