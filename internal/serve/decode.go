package serve

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/jsonid"
	"github.com/semel-dev/semel/internal/jsontext"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/internal/storeapi"
)

// decoder reads the bodies of requests. It is strict: a member that is ignored, such as a
// misspelled window, would change how long a key is remembered.
type decoder struct {
	ids  jsonid.Parser
	opts *Options
	// caller is the name in the owner of claims.
	caller string
	token  bool // the operation that is read has one
}

var parsers = sync.Pool{New: func() any { p := jsonid.NewParser(); return &p }}

// body returns the value of a body that is JSON.
func body(text []byte) ([]byte, error) {
	switch value := bytes.TrimSpace(text); {
	case len(value) == 0:
		return nil, errors.New("the body is empty: expected a JSON object")
	case !json.Valid(text):
		var read any
		return nil, fmt.Errorf("the body is not JSON: %w", json.Unmarshal(text, &read))
	case !utf8.Valid(text):
		return nil, errors.New("the body is not UTF-8: write bytes as base64")
	default:
		return value, nil
	}
}

// members calls set with the index in names of each member of an object.
func members(value []byte, names []string, set func(i int, value []byte) error) error {
	if value[0] != '{' {
		return fmt.Errorf("expected an object, got %s", what(value))
	}
	var seen uint64
	for quoted, child, place := jsontext.Next(value, 0); child != nil; quoted, child, place = jsontext.Next(value, place) {
		name := quoted[1 : len(quoted)-1]
		if bytes.IndexByte(name, '\\') >= 0 {
			var text string
			if err := json.Unmarshal(quoted, &text); err != nil {
				return err
			}
			name = []byte(text)
		}
		i := slices.IndexFunc(names, func(known string) bool { return known == string(name) })
		switch {
		case i < 0:
			return fmt.Errorf("unknown member %q: %s", name, schema.OneOf(string(name), names))
		case seen&(1<<i) != 0:
			return fmt.Errorf("the member %s is there twice", name)
		}
		seen |= 1 << i
		if err := set(i, child); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// elements calls each for every element of an array.
func elements(value []byte, each func(element []byte) error) error {
	if value[0] != '[' {
		return fmt.Errorf("expected a list, got %s", what(value))
	}
	n := 0
	for _, child, place := jsontext.Next(value, 0); child != nil; _, child, place = jsontext.Next(value, place) {
		if err := each(child); err != nil {
			return fmt.Errorf("item %d: %w", n, err)
		}
		n++
	}
	return nil
}

// what says what a JSON value is.
func what(value []byte) string {
	switch value[0] {
	case '{':
		return "an object"
	case '[':
		return "a list"
	case '"':
		return "a text"
	case 't', 'f':
		return "true or false"
	case 'n':
		return "null"
	}
	return "a number"
}

func (d *decoder) text(value []byte) (string, error) {
	if value[0] != '"' {
		return "", fmt.Errorf("expected a text, got %s", what(value))
	}
	if plain := value[1 : len(value)-1]; bytes.IndexByte(plain, '\\') < 0 {
		return string(plain), nil
	}
	return d.ids.String(value)
}

func (d *decoder) base64(value []byte) ([]byte, error) {
	text, err := d.text(value)
	if err != nil {
		return nil, err
	}
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, errors.New("not base64, as RFC 4648 section 4 has it")
	}
	return data, nil
}

func truth(value []byte) (bool, error) {
	switch string(value) {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, fmt.Errorf("expected true or false, got %s", what(value))
}

// quantity reads a text with parse.
func quantity[T any](d *decoder, target *T, value []byte, parse func(string) (T, error)) error {
	text, err := d.text(value)
	if err != nil {
		return err
	}
	if *target, err = parse(text); err != nil {
		return fmt.Errorf("%.40q: %w", text, err)
	}
	return nil
}

func parseToken(text string) (semel.Token, error) {
	t, err := storeapi.ParseToken(text)
	if err != nil {
		return 0, errors.New("not a token: write the text that the claim was answered with")
	}
	return t, nil
}

// parseFingerprint reads the digest of a payload.
func parseFingerprint(text string) (f semel.Fingerprint, err error) {
	digits, long := strings.CutPrefix(text, "sha256:")
	digest, err := hex.DecodeString(digits)
	if err != nil || long && len(digest) != sha256.Size || !long && len(digest) != len(f) {
		return f, errors.New("write sha256: and 64 hexadecimal digits, or 32 digits")
	}
	copy(f[:], digest)
	return f, nil
}

func parseDigest(text string) (d semel.Digest, err error) {
	digest, err := hex.DecodeString(text)
	if err != nil || len(digest) != len(d) || [len(d)]byte(digest) == d { // zero means no digest
		return d, errors.New("not a digest of 32 hexadecimal digits")
	}
	copy(d[:], digest)
	return d, nil
}

func parseTime(text string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return t, errors.New("not a time: write it like 2026-07-14T09:30:00Z")
	}
	return t, nil
}

// keyNames are the members of a key. They begin the members of each request for a key.
var keyNames = []string{"scope", "scope_base64", "id", "id_base64"}

// keyParts are the members of a key that were read.
type keyParts struct {
	semel.Key
	scopes, ids int // members that name the scope, and the id
}

// member reads one of keyNames.
func (d *decoder) member(i int, value []byte, k *keyParts) (err error) {
	var data []byte
	switch i {
	case 0:
		k.scopes++
		k.Scope, err = d.text(value)
	case 1:
		k.scopes++
		data, err = d.base64(value)
		k.Scope = string(data)
	case 2:
		k.ids++
		if k.ID, err = d.id(value); err != nil {
			err = &keyError{err.Error()}
		}
	case 3:
		k.ids++
		data, err = d.base64(value)
		k.ID = string(data)
	}
	return err
}

// id reads an id as messages have it: a number is not the text with its digits.
func (d *decoder) id(value []byte) (string, error) {
	if plain := value[1:max(len(value)-1, 1)]; value[0] == '"' && len(plain) > 0 && bytes.IndexByte(plain, '\\') < 0 {
		return string(plain), nil
	}
	return d.ids.ID(value)
}

// whole returns the key, or what it lacks.
func (d *decoder) whole(k *keyParts) (semel.Key, error) {
	switch {
	case k.scopes == 0:
		return k.Key, errors.New("scope is missing")
	case k.scopes > 1:
		return k.Key, errors.New("scope and scope_base64 exclude each other")
	case k.ids > 1:
		return k.Key, errors.New("id and id_base64 exclude each other")
	case k.ids == 0:
		return k.Key, &keyError{"id is missing"}
	case len(k.ID) > d.opts.MaxID:
		return k.Key, &keyError{fmt.Sprintf("the id has %d bytes, and this server takes %d: send a digest of it, or set serve.max_id", len(k.ID), d.opts.MaxID)}
	}
	if err := k.Validate(); err != nil {
		return k.Key, &keyError{strings.TrimPrefix(err.Error(), "semel: ")}
	}
	return k.Key, nil
}

// keyError says what is wrong with a key.
type keyError struct{ detail string }

// Error implements error.
func (e *keyError) Error() string { return e.detail }

// Is reports whether target is semel.ErrInvalidKey.
func (e *keyError) Is(target error) bool { return target == semel.ErrInvalidKey }

var claimNames = append(slices.Clone(keyNames), "claim_id", "holder", "origin", "request_id", "lease", "window", "fingerprint", "on_lease_expired", "time", "done", "wait", "origin_base64")

// claim reads a claim.
func (d *decoder) claim(value []byte) (*operation, error) {
	o := &operation{verb: verbClaim}
	r := &o.claim
	r.Lease, r.Window, r.Hold = d.opts.Lease, d.opts.Window, d.opts.Hold
	var k keyParts
	var from provenance
	err := members(value, claimNames, func(i int, value []byte) (err error) {
		switch i - len(keyNames) {
		case 0:
			if o.claimID, err = d.text(value); err == nil && (o.claimID == "" || len(o.claimID) > 256) {
				err = errors.New("write 1 to 256 bytes, new for each claim")
			}
		case 1:
			if from.holder, err = d.text(value); err == nil && len(from.holder) > maxHolder {
				err = fmt.Errorf("it has %d bytes, at most %d", len(from.holder), maxHolder)
			}
		case 2:
			if from.origin, err = d.text(value); err == nil && len(from.origin) > semel.MaxOriginBytes {
				err = fmt.Errorf("it has %d bytes, at most %d", len(from.origin), semel.MaxOriginBytes)
			}
		case 3:
			if from.requestID, err = d.text(value); err == nil && len(from.requestID) > maxHolder {
				err = fmt.Errorf("it has %d bytes, at most %d", len(from.requestID), maxHolder)
			}
		case 4:
			err = quantity(d, &r.Lease, value, schema.ParsePositive)
		case 5:
			err = quantity(d, &r.Window, value, schema.ParseWindow)
		case 6:
			err = quantity(d, &r.Fingerprint, value, parseFingerprint)
		case 7:
			err = quantity(d, &r.Hold, value, func(text string) (bool, error) {
				word, err := schema.ParseChoice(text, "hold", "retry")
				return word == "hold", err
			})
		case 8:
			err = quantity(d, &r.Time, value, parseTime)
		case 9:
			r.Done, err = truth(value)
		case 11:
			var data []byte
			if data, err = d.base64(value); err == nil && len(data) > semel.MaxOriginBytes {
				err = fmt.Errorf("it has %d bytes, at most %d", len(data), semel.MaxOriginBytes)
			}
			from.origin = string(data)
		case 10:
			if err = quantity(d, &o.wait, value, schema.ParsePause); err == nil && o.wait > MaxWait {
				err = fmt.Errorf("at most %s", MaxWait)
			}
		default:
			err = d.member(i, value, &k)
		}
		return err
	})
	if err == nil {
		r.Key, err = d.whole(&k)
	}
	if o.named = o.claimID != ""; !o.named {
		o.claimID = rand.Text()
	}
	r.Owner = semel.Owner{Name: ownerName(d.caller, from.holder), Nonce: nonce(d.caller, o.claimID)}
	if d.opts.KeepOrigin {
		from.holder = r.Owner.Name
		r.Origin = from.text()
	}
	return o, err
}

// maxHolder is the longest name of a holder, and id of a request.
const maxHolder = 200

// ownerName returns the name of an owner: a caller with credentials comes before the name
// that it gives its worker, which it may make up.
func ownerName(caller, holder string) string {
	if caller == "" || holder == "" {
		return caller + holder
	}
	return caller + "/" + holder
}

// nonce returns what makes a claim recognise its own repetition. No other caller can make
// the same one.
func nonce(caller, claimID string) uint64 {
	sum := sha256.Sum256([]byte(caller + "\x00" + claimID))
	return binary.BigEndian.Uint64(sum[:8])
}

var completeNames = append(slices.Clone(keyNames), "token", "result", "window")

// complete reads a completion.
func (d *decoder) complete(value []byte) (*operation, error) {
	o := &operation{verb: verbComplete}
	d.token = false
	r := &o.complete
	r.Window = d.opts.Window
	var k keyParts
	err := members(value, completeNames, func(i int, value []byte) (err error) {
		switch i - len(keyNames) {
		case 0:
			d.token = true
			err = quantity(d, &r.Token, value, parseToken)
		case 1:
			r.Result, err = d.result(value)
		case 2:
			err = quantity(d, &r.Window, value, schema.ParseWindow)
		default:
			err = d.member(i, value, &k)
		}
		return err
	})
	if err == nil {
		r.Key, err = d.whole(&k)
	}
	if err == nil && !d.token {
		err = errNoToken
	}
	return o, err
}

var errNoToken = errors.New("token is missing: write the text that the claim was answered with")

var resultNames = []string{"json", "text", "base64", "failed", "failed_base64", "not_kept"}

// result reads the result of an effect.
func (d *decoder) result(value []byte) (r semel.Result, err error) {
	n := 0
	err = members(value, resultNames, func(i int, value []byte) (err error) {
		n++
		var text string
		r.Kind = semel.Value
		switch i {
		case 0:
			r.Data = bytes.Clone(value)
		case 1:
			text, err = d.text(value)
			r.Data = []byte(text)
		case 2:
			r.Data, err = d.base64(value)
		case 3:
			text, err = d.text(value)
			r.Kind, r.Data = semel.Failed, []byte(text)
		case 4:
			r.Kind = semel.Failed
			r.Data, err = d.base64(value)
		case 5:
			var yes bool
			if yes, err = truth(value); yes {
				r.Kind = semel.NotKept
			} else {
				r.Kind = semel.NoResult
			}
		}
		return err
	})
	switch {
	case err != nil:
		return r, err
	case n > 1:
		return r, errors.New("write one of " + strings.Join(resultNames, ", "))
	case int64(len(r.Data)) > d.opts.MaxResult:
		return r, fmt.Errorf("it has %d bytes, and this server keeps %d: %w", len(r.Data), d.opts.MaxResult, semel.ErrResultTooLarge)
	}
	return r, nil
}

var releaseNames = append(slices.Clone(keyNames), "token", "unknown")

// release reads a release.
func (d *decoder) release(value []byte) (*operation, error) {
	o := &operation{verb: verbRelease}
	d.token = false
	r := &o.release
	var k keyParts
	err := members(value, releaseNames, func(i int, value []byte) (err error) {
		switch i - len(keyNames) {
		case 0:
			d.token = true
			err = quantity(d, &r.Token, value, parseToken)
		case 1:
			r.Unknown, err = truth(value)
		default:
			err = d.member(i, value, &k)
		}
		return err
	})
	if err == nil {
		r.Key, err = d.whole(&k)
	}
	if err == nil && !d.token {
		err = errNoToken
	}
	return o, err
}

var extendNames = append(slices.Clone(keyNames), "token", "lease")

// extend reads the extension of one lease.
func (d *decoder) extend(value []byte, lease time.Duration) (*operation, error) {
	o := &operation{verb: verbExtend}
	d.token = false
	r := &o.extend
	r.Lease = lease
	var k keyParts
	err := members(value, extendNames, func(i int, value []byte) (err error) {
		switch i - len(keyNames) {
		case 0:
			d.token = true
			err = quantity(d, &r.Token, value, parseToken)
		case 1:
			err = quantity(d, &r.Lease, value, schema.ParsePositive)
		default:
			err = d.member(i, value, &k)
		}
		return err
	})
	if err == nil {
		r.Key, err = d.whole(&k)
	}
	if err == nil && !d.token {
		err = errNoToken
	}
	return o, err
}

// operations reads the items of a list, each with read. An item that is wrong refuses only
// itself, unless the body as a whole cannot be read.
func (d *decoder) operations(value []byte, read func(item []byte) (*operation, error)) (list []*operation, err error) {
	err = elements(value, func(element []byte) error {
		if len(list) == d.opts.MaxBatch {
			return fmt.Errorf("at most %d items: send the rest in another request", d.opts.MaxBatch)
		}
		o, err := read(element)
		if err != nil {
			o = &operation{problem: refusal(err)}
		}
		list = append(list, o)
		return nil
	})
	return list, err
}

// extensions reads the body of the verb extend.
func (d *decoder) extensions(value []byte) (list []*operation, err error) {
	var items []byte
	lease := d.opts.Lease
	err = members(value, []string{"items", "lease"}, func(i int, value []byte) error {
		if i == 0 {
			items = value
			return nil
		}
		return quantity(d, &lease, value, schema.ParsePositive)
	})
	switch {
	case err != nil:
		return nil, err
	case items == nil:
		return nil, errNoItems
	}
	return d.operations(items, func(item []byte) (*operation, error) { return d.extend(item, lease) })
}

var errNoItems = errors.New("items is missing: write a list")

// items returns the member items of a body that has no other.
func items(value []byte) (list []byte, err error) {
	err = members(value, []string{"items"}, func(_ int, value []byte) error {
		list = value
		return nil
	})
	if err == nil && list == nil {
		err = errNoItems
	}
	return list, err
}

// batch reads the body of the verb batch.
func (d *decoder) batch(value []byte) ([]*operation, error) {
	list, err := items(value)
	if err != nil {
		return nil, err
	}
	return d.operations(list, func(item []byte) (o *operation, err error) {
		err = members(item, []string{"claim", "complete", "release", "extend"}, func(i int, value []byte) (err error) {
			if o != nil {
				return errors.New("an item has one verb")
			}
			switch i {
			case 0:
				if o, err = d.claim(value); err == nil && o.wait > 0 {
					err = errors.New("wait is for a claim of its own, not for a batch")
				}
			case 1:
				o, err = d.complete(value)
			case 2:
				o, err = d.release(value)
			case 3:
				o, err = d.extend(value, d.opts.Lease)
			}
			return err
		})
		if err == nil && o == nil {
			err = errors.New("write one of claim, complete, release, extend")
		}
		return o, err
	})
}

var (
	lookupNames = append(slices.Clone(keyNames), "digest")
	errBoth     = errors.New("digest and scope with id exclude each other")
)

// keys reads the body of the verb lookup. An item that is wrong has its problem.
func (d *decoder) keys(value []byte) ([]*operation, error) {
	list, err := items(value)
	if err != nil {
		return nil, err
	}
	return d.operations(list, func(item []byte) (*operation, error) {
		o := &operation{verb: verbLookup}
		var k keyParts
		digest := false
		err := members(item, lookupNames, func(i int, value []byte) error {
			if i == len(keyNames) {
				digest = true
				return quantity(d, &o.digest, value, parseDigest)
			}
			return d.member(i, value, &k)
		})
		switch {
		case err != nil:
		case digest && k.scopes+k.ids > 0:
			err = errBoth
		case !digest:
			o.claim.Key, err = d.whole(&k)
		}
		return o, err
	})
}

// refusal returns the problem of a request that cannot be read.
func refusal(err error) *storeapi.Problem {
	switch {
	case errors.Is(err, semel.ErrInvalidKey):
		return storeapi.Of(storeapi.KeyInvalid, err.Error())
	case errors.Is(err, semel.ErrResultTooLarge):
		return storeapi.Of(storeapi.ResultTooLarge, strings.TrimSuffix(err.Error(), ": "+semel.ErrResultTooLarge.Error()))
	}
	return storeapi.Of(storeapi.InvalidRequest, err.Error())
}
