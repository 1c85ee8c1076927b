package provider

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

var (
	forgeries = flag.Int("forgeries", 0, "how many forged requests each preset gets; 0 is 1,000,000, or 2,000 with -short")
	seed      = flag.Uint64("seed", 0, "seed of the forged requests; 0 draws one")
)

// seeded returns how many forgeries a preset gets, and their source.
func seeded(t *testing.T) (int, *rand.Rand) {
	t.Helper()
	n, from := *forgeries, *seed
	if n == 0 {
		if n = 1_000_000; testing.Short() {
			n = 2_000
		}
	}
	if from == 0 {
		from = rand.Uint64()
	}
	t.Logf("-seed %d", from)
	return n, rand.New(rand.NewPCG(from, 0))
}

// forger makes requests from a valid one that must be refused.
type forger struct {
	*rand.Rand
	of     *vector
	scheme *Scheme
	id     string // the header that is signed, or ""
	// signed returns the header with the signature of a request at a time, by a secret.
	signed func(secret string, unix int64) map[string]string
}

// forge returns a changed request, and the kind of the change.
func (f *forger) forge() (r *http.Request, body, what string) {
	r, body = f.of.request(), f.of.body
	kinds := []string{"mutated signature", "truncated signature", "reordered signature", "mutated body", "truncated body", "another secret", "signature twice", "another spelling"}
	if f.scheme.Separator == "" || f.scheme.TimePrefix != "" {
		kinds = append(kinds, "a part added")
	}
	if f.scheme.Timed() {
		kinds = append(kinds, "late", "another time")
	}
	if f.id != "" {
		kinds = append(kinds, "another id")
	}
	isForm := strings.Contains(f.scheme.Signed, "{form}")
	if strings.Contains(f.scheme.Signed, "{url}") {
		kinds = append(kinds, "another address")
	}
	if strings.Contains(f.scheme.Signed, "{url}") && !isForm || f.id != "" {
		kinds = append(kinds, "moved")
	}
	what = kinds[f.IntN(len(kinds))]
	name := f.scheme.Header
	signature := r.Header.Get(name)
	set := func(value string) { r.Header[http.CanonicalHeaderKey(name)] = []string{value} }
	switch what {
	case "mutated signature":
		set(f.mutate(signature))
	case "truncated signature":
		from := f.IntN(len(signature))
		set([]string{signature[:from], signature[from:], signature[:from] + signature[min(from+1+f.IntN(8), len(signature)):]}[f.IntN(3)])
	case "reordered signature":
		set(f.reorder(signature))
	case "mutated body":
		body = f.mutate(body)
	case "truncated body":
		body = body[:f.IntN(len(body))]
	case "another secret":
		for name, value := range f.signed(f.mutateSecret(), f.of.at) {
			r.Header.Set(name, value)
		}
	case "signature twice":
		r.Header.Add(name, []string{signature, f.mutate(signature), ""}[f.IntN(3)])
	case "a part added":
		set([]string{f.scheme.Separator + signature, signature + "=", " " + signature, signature + ",t=" + strconv.FormatInt(f.of.at, 10), "t=1," + signature, "x" + signature, signature + "\x00"}[f.IntN(7)])
	case "another spelling":
		set([]string{strings.ToUpper(signature), strings.TrimRight(signature, "="), strings.NewReplacer("+", "-", "/", "_").Replace(signature), strings.TrimPrefix(signature, f.scheme.Prefix), strings.Replace(signature, f.scheme.Prefix, "v0=", 1)}[f.IntN(5)])
	case "late":
		off := int64(DefaultTolerance/time.Second) + 1 + f.Int64N(1<<uint(1+f.IntN(30)))
		if f.IntN(2) == 0 {
			off = -off
		}
		for name, value := range f.signed(f.of.secret, f.of.at+off) {
			r.Header.Set(name, value)
		}
	case "another time":
		changed := f.scheme.written(f.of.at + int64(f.IntN(599)-299))
		if f.IntN(4) == 0 {
			changed = f.mutate(f.scheme.written(f.of.at))
		}
		if f.scheme.TimeHeader != "" {
			r.Header.Set(f.scheme.TimeHeader, changed)
		} else {
			set(strings.Replace(signature, strconv.FormatInt(f.of.at, 10), changed, 1))
		}
	case "another id":
		r.Header[http.CanonicalHeaderKey(f.id)] = []string{f.mutate(r.Header.Get(f.id))}
	case "another address":
		query := f.mutate(r.URL.RawQuery)
		r.URL.RawQuery = query
	case "moved": // from the body to the value before it, or back, with the bytes between them
		from := 1 + f.IntN(len(body))
		between := []string{"", ".", "\n", f.scheme.written(f.of.at)}[f.IntN(4)]
		switch {
		case f.id != "" && f.IntN(2) == 0:
			r.Header[http.CanonicalHeaderKey(f.id)] = []string{r.Header.Get(f.id) + between + body[:from]}
			body = body[from:]
		case f.id != "":
			id := r.Header.Get(f.id)
			at := f.IntN(len(id))
			r.Header[http.CanonicalHeaderKey(f.id)], body = []string{id[:at]}, id[at:]+between+body
		case f.IntN(2) == 0:
			r.URL.RawQuery, body = r.URL.RawQuery+between+body[:from], body[from:]
		default:
			at := f.IntN(len(r.URL.RawQuery) + 1)
			r.URL.RawQuery, body = r.URL.RawQuery[:at], r.URL.RawQuery[at:]+between+body
		}
	}
	return r, body, what
}

// mutate changes a byte of a text, or takes one out, or adds one, or exchanges two.
func (f *forger) mutate(text string) string {
	b := []byte(text)
	if len(b) == 0 {
		return "x"
	}
	for range 1 + f.IntN(3) {
		i := f.IntN(len(b))
		switch f.IntN(5) {
		case 0:
			b[i] ^= 1 << f.IntN(8)
		case 1:
			b[i] = byte(f.IntN(256))
		case 2:
			if len(b) > 1 {
				b = slices.Delete(b, i, i+1)
			}
		case 3:
			b = slices.Insert(b, i, "0af=,. +/"[f.IntN(9)])
		case 4:
			j := f.IntN(len(b))
			b[i], b[j] = b[j], b[i]
		}
	}
	return string(b)
}

// reorder changes the order of the parts or of the characters of a signature.
func (f *forger) reorder(signature string) string {
	if f.scheme.Separator != "" && f.IntN(2) == 0 {
		parts := strings.Split(signature, f.scheme.Separator)
		f.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
		return strings.Join(parts, f.scheme.Separator)
	}
	b := []byte(signature)
	from := len(f.scheme.Prefix)
	switch f.IntN(3) {
	case 0:
		slices.Reverse(b[from:])
	case 1:
		at := from + f.IntN(len(b)-from)
		b = slices.Concat(b[:from], b[at:], b[from:at])
	default:
		f.Shuffle(len(b)-from, func(i, j int) { b[from+i], b[from+j] = b[from+j], b[from+i] })
	}
	return string(b)
}

// mutateSecret returns a secret that is another key. HMAC adds zeros to a short key, so zeros at
// the end make no other one.
func (f *forger) mutateSecret() string {
	prefix := f.scheme.SecretPrefix
	was, err := f.scheme.Secret(f.of.secret)
	if err != nil {
		panic(err) // the secret of a vector
	}
	for {
		other := prefix + f.mutate(strings.TrimPrefix(f.of.secret, prefix))
		if f.scheme.SecretEncoding == "base64" {
			other = prefix + strings.Repeat("QUJD", 1+f.IntN(9))
		}
		if got, err := f.scheme.Secret(other); err == nil && len(got) > 0 && !bytes.Equal(bytes.TrimRight(got, "\x00"), bytes.TrimRight(was, "\x00")) {
			return other
		}
	}
}

// same reports whether a request is the valid one, as far as its sender signs it: another
// spelling of a form, for instance, has the same content.
func (f *forger) same(v *Verifier, r *http.Request, body string) bool {
	was := f.of.request()
	if got, written, err := v.parts(r); f.scheme.Separator != "" && err == nil { // further parts are other kinds of signatures
		want, at, _ := v.parts(was)
		return slices.Equal(got, want) && written == at && body == f.of.body && r.Header.Get(f.id) == was.Header.Get(f.id) && r.URL.RawQuery == was.URL.RawQuery
	}
	if !slices.Equal(r.Header.Values(f.scheme.Header), was.Header.Values(f.scheme.Header)) || r.Header.Get(f.scheme.TimeHeader) != was.Header.Get(f.scheme.TimeHeader) {
		return false
	}
	if !strings.Contains(f.scheme.Signed, "{form}") {
		return body == f.of.body && r.Header.Get(f.id) == was.Header.Get(f.id) && r.URL.RawQuery == was.URL.RawQuery
	}
	now, err := v.contents(r, []byte(body), "")
	if err != nil {
		return false
	}
	before, err := v.contents(was, []byte(f.of.body), "")
	return err == nil && string(now[0]) == string(before[0])
}

// written returns a time as requests of a scheme have it.
func (s *Scheme) written(unix int64) string {
	if s.TimeUnit == "ms" {
		unix *= 1000
	}
	return strconv.FormatInt(unix, 10)
}

// forged is a scheme and a valid request of it.
type forged struct {
	name   string
	scheme Scheme
	of     vector
}

// schemes are the presets, and senders that use the rest of hmac.
func schemes() (list []forged) {
	for _, p := range Presets() {
		i := slices.IndexFunc(vectors, func(v vector) bool { return v.preset == p.Name })
		list = append(list, forged{p.Name, p.Scheme, vectors[i]})
	}
	return append(list,
		forged{"hmac, method, address, header, time and body", Scheme{
			Header: "X-Signature", Separator: ";", Prefix: "sig=", TimeHeader: "X-Time", TimeUnit: "ms",
			Algorithm: "sha512", Encoding: "base64", Signed: "{method} {url}\n{header:X-Event}..{time}.{body}",
			SecretEncoding: "hex",
		}, vector{secret: "616263", at: 1731705121, url: "https://example.com/hooks?a=1", headers: map[string]string{"X-Event": "evt_1"}, body: `{"id":7,"text":".1731705121000."}`}},
		forged{"hmac, address and body", Scheme{
			Header: "X-Signature", Algorithm: "sha256", Encoding: "hex", Signed: "{url}{body}",
		}, vector{secret: "abc", url: "https://example.com/hooks", body: `?id=7{"id":7}`}},
		forged{"hmac, body and time", Scheme{
			Header: "X-Signature", Separator: ",", Prefix: "v1=", TimePrefix: "t=", TimeUnit: "s", Algorithm: "sha1", Encoding: "hex", Signed: "{body}{time}",
		}, vector{secret: "abc", at: 1731705121, body: `{"id":7}1731705121`}},
	)
}

// TestNoForgedRequestIsAccepted changes the valid request of each scheme: its signature, time,
// body, id, address or secret.
func TestNoForgedRequestIsAccepted(t *testing.T) {
	t.Parallel()
	for _, c := range schemes() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n, random := seeded(t)
			at(t, c.of.at, func(t *testing.T) {
				of := c.of
				f := &forger{Rand: random, of: &of, scheme: &c.scheme}
				if _, after, ok := strings.Cut(c.scheme.Signed, "{header:"); ok {
					f.id, _, _ = strings.Cut(after, "}")
				}
				of.headers = maps.Clone(of.headers)
				if of.headers == nil {
					of.headers = map[string]string{}
				}
				maps.Copy(of.headers, signedBy(t, &of, c.scheme, of.secret, of.at)) // without other kinds of signatures
				f.signed = func(secret string, unix int64) map[string]string { return signedBy(t, f.of, c.scheme, secret, unix) }
				valid := verifierOf(t, c.scheme, of.secret)
				seen := map[string]int{}
				for range n {
					r, body, what := f.forge()
					for f.same(valid, r, body) && what != "another secret" && what != "late" {
						r, body, what = f.forge()
					}
					if seen[what]++; valid.Verify(r, []byte(body)) == nil {
						t.Fatalf("%s is accepted: %v %s %q", what, r.Header, r.URL, body)
					}
				}
				t.Logf("%v", seen)
				if err := valid.Verify(f.of.request(), []byte(f.of.body)); err != nil {
					t.Errorf("the valid request: %v", err)
				}
			})
		})
	}
}

// verifierOf returns the verifier of a scheme with a secret as its sender writes it.
func verifierOf(t testing.TB, s Scheme, secret string) *Verifier {
	t.Helper()
	decoded, err := s.Secret(secret)
	if err != nil {
		t.Fatal(err)
	}
	v, err := NewVerifier(s, &VerifierOptions{Secrets: [][]byte{decoded}})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// signedBy returns the headers of a vector that is signed again, by a secret and at a time.
func signedBy(t *testing.T, of *vector, s Scheme, secret string, unix int64) map[string]string {
	v := verifierOf(t, s, secret)
	written := s.written(unix)
	contents, err := v.contents(of.request(), []byte(of.body), written)
	if err != nil {
		t.Fatal(err)
	}
	mac := v.mac(v.opts.Secrets[0], contents[0])
	headers := map[string]string{s.Header: s.Prefix + mac}
	if s.TimePrefix != "" {
		headers[s.Header] = s.TimePrefix + written + s.Separator + s.Prefix + mac
	}
	if s.TimeHeader != "" {
		headers[s.TimeHeader] = written
	}
	return headers
}

// TestNoForgedMessageOfSNSIsAccepted changes a valid message. It is the same message if what is
// signed stays as it is.
func TestNoForgedMessageOfSNSIsAccepted(t *testing.T) {
	t.Parallel()
	n, random := seeded(t)
	now := time.Now()
	a := newAmazon(t, now)
	stranger := newAmazon(t, now)
	stranger.key = strangerKey()
	s := a.sns(t, &SNSOptions{Topics: []string{topic}})
	for _, version := range []string{"1", "2"} {
		members := a.message(t, version, now, nil)
		valid := string(encoded(t, members))
		var late []string
		for i := range 40 {
			off := DefaultSNSTolerance + time.Minute + time.Duration(i*i*i)*time.Hour
			late = append(late,
				string(encoded(t, a.message(t, version, now, map[string]any{"Timestamp": now.Add(-off).UTC().Format(time.RFC3339)}))),
				string(encoded(t, stranger.message(t, version, now, map[string]any{"Subject": fmt.Sprint(i)}))))
		}
		content, err := signedBySNS(raw(t, valid))
		if err != nil {
			t.Fatal(err)
		}
		same := func(body string) bool {
			m, err := membersOf([]byte(body))
			if err != nil {
				return false
			}
			for _, name := range []string{"Signature", "SignatureVersion", "SigningCertURL"} {
				if text, _ := textOf(m[name]); text != members[name] {
					return false
				}
			}
			got, err := signedBySNS(m)
			return err == nil && string(got) == string(content)
		}
		f := &forger{Rand: random, of: &vector{}, scheme: &Scheme{}}
		for range n / 2 {
			body := valid
			for same(body) {
				switch f.IntN(5) {
				case 0:
					body = f.mutate(valid)
				case 1:
					body = valid[:f.IntN(len(valid))]
				case 2: // in the signature
					changed := map[string]any{}
					for name, value := range members {
						changed[name] = value
					}
					signature := members["Signature"].(string)
					changed["Signature"] = []string{f.mutate(signature), signature[:f.IntN(len(signature))], f.reorder(signature)}[f.IntN(3)]
					body = string(encoded(t, changed))
				case 3: // two values exchanged
					changed := map[string]any{}
					for name, value := range members {
						changed[name] = value
					}
					names := []string{"Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type", "Signature", "SignatureVersion"}
					i, j := names[f.IntN(len(names))], names[f.IntN(len(names))]
					changed[i], changed[j] = changed[j], changed[i]
					body = string(encoded(t, changed))
				default:
					body = late[f.IntN(len(late))]
				}
			}
			if s.Verify(post(), []byte(body)) == nil {
				t.Fatalf("accepted: %s", body)
			}
		}
		if err := s.Verify(post(), []byte(valid)); err != nil {
			t.Errorf("the valid message: %v", err)
		}
	}
}

func raw(t *testing.T, body string) map[string]json.RawMessage {
	t.Helper()
	members, err := membersOf([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return members
}

// FuzzVerify looks for a request that panics, or that two secrets accept.
func FuzzVerify(f *testing.F) {
	for _, v := range vectors {
		p := preset(f, v.preset)
		f.Add(v.preset, v.headers[p.Header], v.headers[p.TimeHeader], v.headers["webhook-id"], v.headers["Content-Type"], strings.TrimPrefix(v.url, "https://mycompany.com/myapp.php?"), []byte(v.body))
	}
	for _, c := range schemes() {
		headers := map[string]string{}
		maps.Copy(headers, c.of.headers)
		f.Add(c.name, headers[c.scheme.Header], c.scheme.written(c.of.at), headers["X-Event"], "", "a=1", []byte(c.of.body))
	}
	f.Add("sns", "", "", "", "", "", []byte(`{"Type":"Notification","MessageId":"1","Signature":"eA==","SignatureVersion":"2","SigningCertURL":"https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-x.pem","Message":"m","Timestamp":"2012-05-02T00:54:06.655Z","TopicArn":"a"}`))
	f.Add("woocommerce", "", "", "", form, "hub.mode=subscribe&hub.challenge=1&hub.verify_token=t", []byte("webhook_id=1"))
	s, err := NewSNS(nil)
	if err != nil {
		f.Fatal(err)
	}
	s.client.Transport = newAmazon(f, time.Now())
	f.Fuzz(func(t *testing.T, name, signature, written, id, kind, query string, body []byte) {
		r := httptest.NewRequest(http.MethodPost, "https://mycompany.com/myapp.php", nil)
		r.URL.RawQuery = query
		r.Header = http.Header{"Webhook-Id": {id}, "X-Event": {id}, "Content-Type": {kind}}
		for _, h := range Handshakes() {
			reply, err := h.Answer(r, body)
			if err != nil || reply != nil && len(reply.Body) > 8*mostChallenge {
				t.Errorf("%+v, %v", reply, err)
			}
		}
		if s.Verify(r, body) == nil {
			t.Error("SNS accepts a message that it did not sign")
		}
		if _, err := membersOf(body); err == nil && !json.Valid(body) {
			t.Errorf("%q has members and is no JSON", body)
		}
		for _, c := range schemes() {
			p := c.scheme
			if c.name != name {
				continue
			}
			r.Header[http.CanonicalHeaderKey(p.Header)] = []string{signature}
			if p.TimeHeader != "" {
				r.Header[http.CanonicalHeaderKey(p.TimeHeader)] = []string{written}
			}
			accepted := 0
			for _, secret := range []string{"one secret", "another one"} {
				v, err := NewVerifier(p, &VerifierOptions{Secrets: [][]byte{[]byte(secret)}, Tolerance: 100 * 365 * 24 * time.Hour})
				if err != nil {
					t.Fatal(err)
				}
				if v.Verify(r, body) == nil {
					accepted++
				}
			}
			if accepted > 0 {
				t.Errorf("%s accepts a forged signature", name)
			}
		}
	})
}
