// Package httpstore is a store whose records a server has: semel serve, or another one with
// its API. A Guard over it works as over the store of the server, and needs no client
// library of that store.
//
// A request whose answer was lost is sent again, for as long as Options.Retry: every
// request recognises its own repetition.
package httpstore

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/internal/storeapi"
)

// Options are the options of a store.
type Options struct {
	// Token is the bearer token. Defaults to none.
	Token string
	// Client sends requests. Defaults to one with 64 connections. Over it, a request ends
	// after 30 s.
	Client *http.Client
	// Retry is how long a request is sent again after the first error that may pass. Must not
	// be negative. Defaults to 5 s.
	Retry time.Duration
	// Reason is why Resolve and Remove are called, for the audit log of the server. Defaults
	// to "called by a program".
	Reason string
}

// Store is a store over HTTP. Its methods are safe for concurrent use.
type Store struct {
	base   string
	opts   Options
	traits semel.Traits
	limits storeapi.Limits
	closed atomic.Bool
	own    bool         // the client is the store's
	calls  sync.RWMutex // read while a call is in progress
	once   sync.Once
}

var (
	_ semel.Store          = (*Store)(nil)
	_ semel.Inspector      = (*Store)(nil)
	_ semel.Resolver       = (*Store)(nil)
	_ semel.DigestResolver = (*Store)(nil)
)

// Open returns the store of the server at a URL such as http://127.0.0.1:4196. It asks the
// server for its limits and promises, and blocks until it answers, or Options.Retry is over
// and the last attempt has failed.
// Nil options are valid. The caller must call Close.
func Open(ctx context.Context, address string, opts *Options) (*Store, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
		return nil, fmt.Errorf("httpstore: %q is not the URL of a server, such as http://127.0.0.1:4196: %w", address, semel.ErrInvalidRequest)
	}
	s := &Store{base: strings.TrimSuffix(address, "/") + "/v1/"}
	if opts != nil {
		s.opts = *opts
	}
	if s.opts.Retry < 0 {
		return nil, fmt.Errorf("httpstore: Options.Retry: %s is negative: %w", s.opts.Retry, semel.ErrInvalidRequest)
	}
	s.opts.Retry = cmp.Or(s.opts.Retry, 5*time.Second)
	s.opts.Reason = cmp.Or(s.opts.Reason, "called by a program")
	if s.own = s.opts.Client == nil; s.own {
		s.opts.Client = &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{MaxConnsPerHost: 64, MaxIdleConnsPerHost: 64, IdleConnTimeout: time.Minute, Proxy: http.ProxyFromEnvironment}}
	}
	if _, err := s.call(ctx, http.MethodGet, "limits", nil, &s.limits); err != nil {
		_ = s.Close()
		return nil, fmt.Errorf("httpstore: open %s: %w", address, err)
	}
	t := s.limits.Store
	tick, _ := time.ParseDuration(t.Tick) // 0 if the server does not say
	s.traits = semel.Traits{
		Durable: t.Durable, PowerSafe: t.PowerSafe, DurableClaims: t.DurableClaims, Shared: t.Shared, Exact: t.Exact, Results: t.Results,
		MaxResult: s.limits.MaxResult, Origins: t.Origins, Tick: tick, Batching: semel.Batching{Calls: 4, Least: 16, Most: s.limits.MaxBatch},
	}
	return s, nil
}

// Close waits for calls in progress, for at most Options.Retry plus the time of the first and the
// last attempt, and closes the connections of the store's own client. The server continues.
func (s *Store) Close() error {
	s.once.Do(func() {
		s.calls.Lock()
		defer s.calls.Unlock()
		s.closed.Store(true)
		if s.own {
			s.opts.Client.CloseIdleConnections()
		}
	})
	return nil
}

// Traits implements semel.Store: they are those of the server's store.
func (s *Store) Traits() semel.Traits { return s.traits }

var errLengths = fmt.Errorf("httpstore: requests and answers differ in length: %w", semel.ErrInvalidRequest)

// wireKey is a key in a request.
type wireKey struct {
	Scope       *string `json:"scope,omitempty"`
	ScopeBase64 []byte  `json:"scope_base64,omitempty"`
	ID          string  `json:"id,omitempty"`
	IDBase64    []byte  `json:"id_base64,omitempty"`
}

func wireOf(k semel.Key) (w wireKey) {
	if utf8.ValidString(k.Scope) {
		w.Scope = &k.Scope
	} else {
		w.ScopeBase64 = []byte(k.Scope)
	}
	// An id that begins with NUL is of another type than text; see package key.
	if utf8.ValidString(k.ID) && !strings.HasPrefix(k.ID, "\x00") {
		w.ID = k.ID
	} else {
		w.IDBase64 = []byte(k.ID)
	}
	return w
}

type wireClaim struct {
	wireKey
	ClaimID        string `json:"claim_id,omitempty"`
	Holder         string `json:"holder,omitempty"`
	Origin         string `json:"origin,omitempty"`
	OriginBase64   []byte `json:"origin_base64,omitempty"`
	Lease          string `json:"lease,omitempty"`
	Window         string `json:"window"`
	Fingerprint    string `json:"fingerprint,omitempty"`
	OnLeaseExpired string `json:"on_lease_expired"`
	Time           string `json:"time,omitempty"`
	Done           bool   `json:"done,omitempty"`
}

// item is an item of a batch.
type item struct {
	Claim    *wireClaim    `json:"claim,omitempty"`
	Complete *wireComplete `json:"complete,omitempty"`
	Release  *wireRelease  `json:"release,omitempty"`
	Extend   *wireExtend   `json:"extend,omitempty"`
}

type wireComplete struct {
	wireKey
	Token  string           `json:"token"`
	Result *storeapi.Result `json:"result,omitempty"`
	Window string           `json:"window"`
}

type wireRelease struct {
	wireKey
	Token   string `json:"token"`
	Unknown bool   `json:"unknown,omitempty"`
}

type wireExtend struct {
	wireKey
	Token string `json:"token"`
	Lease string `json:"lease"`
}

func windowText(d time.Duration) string {
	if d == semel.Forever {
		return "forever"
	}
	return d.String()
}

func wireResult(r semel.Result) *storeapi.Result {
	text := string(r.Data)
	valid := utf8.Valid(r.Data)
	switch r.Kind {
	case semel.Value:
		if valid {
			return &storeapi.Result{Text: &text}
		}
		return &storeapi.Result{Base64: &r.Data}
	case semel.Failed:
		if valid {
			return &storeapi.Result{Failed: &text}
		}
		return &storeapi.Result{FailedBase64: &r.Data}
	case semel.NotKept:
		return &storeapi.Result{NotKept: true}
	}
	return nil
}

// Claim implements semel.Store.
func (s *Store) Claim(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
	if len(reqs) != len(answers) {
		return errLengths
	}
	clear(answers)
	return s.batch(ctx, len(reqs), func(i int) (item, semel.Key, int, error) {
		r := &reqs[i]
		if err := r.Validate(); err != nil {
			return item{}, r.Key, 0, err
		}
		w := &wireClaim{
			wireKey: wireOf(r.Key), Holder: r.Owner.Name, Window: windowText(r.Window), Fingerprint: r.Fingerprint.String(), OnLeaseExpired: "retry", Done: r.Done,
		}
		if w.ClaimID = strconv.FormatUint(r.Owner.Nonce, 16); r.Owner == (semel.Owner{}) {
			w.ClaimID = rand.Text() // such a claim recognises itself in this call alone
		}
		if utf8.ValidString(r.Origin) {
			w.Origin = r.Origin
		} else {
			w.OriginBase64 = []byte(r.Origin)
		}
		if r.Lease > 0 {
			w.Lease = r.Lease.String()
		}
		if r.Hold {
			w.OnLeaseExpired = "hold"
		}
		if !r.Time.IsZero() {
			w.Time = r.Time.UTC().Format(time.RFC3339Nano)
		}
		return item{Claim: w}, r.Key, len(r.Key.ID) + len(r.Key.Scope), nil
	}, func(i int, text json.RawMessage, err error) error {
		a := &answers[i]
		if err != nil {
			a.Err = err
			return nil
		}
		var said storeapi.Claimed
		if err := json.Unmarshal(text, &said); err != nil {
			return err
		}
		return read(&said, a)
	})
}

// read reads the answer to a claim.
func read(said *storeapi.Claimed, a *semel.ClaimAnswer) (err error) {
	a.Decision = storeapi.ParseDecision(said.Decision)
	a.Claim.Attempt = said.Attempt
	token := said.HolderToken
	if a.Decision == semel.Fresh {
		token = said.Token
	}
	if token != "" {
		if a.Claim.Token, err = storeapi.ParseToken(token); err != nil {
			return err
		}
	}
	if a.Claim.LeaseEnd, err = readTime(said.LeaseEnd); err != nil {
		return err
	}
	if a.Decision == semel.InFlight || a.Decision == semel.OutcomeUnknown {
		a.Holder = said.Holder
	}
	if a.Decision == semel.Duplicate && said.Result != nil {
		a.Result = resultOf(said.Result.Kind, said.Result.Text, said.Result.Base64)
	}
	return nil
}

func resultOf(kind string, text *string, data *[]byte) (r semel.Result) {
	switch kind {
	case "value":
		r.Kind = semel.Value
	case "failed":
		r.Kind = semel.Failed
	case "not_kept":
		r.Kind = semel.NotKept
	}
	switch {
	case text != nil:
		r.Data = []byte(*text)
	case data != nil:
		r.Data = *data
	}
	return r
}

func readTime(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	return time.Parse(time.RFC3339Nano, text)
}

// Complete implements semel.Store.
func (s *Store) Complete(ctx context.Context, reqs []semel.CompleteRequest, answers []error) error {
	if len(reqs) != len(answers) {
		return errLengths
	}
	clear(answers)
	return s.batch(ctx, len(reqs), func(i int) (item, semel.Key, int, error) {
		r := &reqs[i]
		err := r.Validate(s.traits.MaxResult)
		w := &wireComplete{wireKey: wireOf(r.Key), Token: storeapi.FormatToken(r.Token), Result: wireResult(r.Result), Window: windowText(r.Window)}
		return item{Complete: w}, r.Key, len(r.Key.ID) + len(r.Key.Scope) + len(r.Result.Data), err
	}, settled(answers))
}

// settled returns a function that reads the answers to completions and releases.
func settled(answers []error) func(i int, text json.RawMessage, err error) error {
	return func(i int, _ json.RawMessage, err error) error {
		answers[i] = err
		return nil
	}
}

// Release implements semel.Store.
func (s *Store) Release(ctx context.Context, reqs []semel.ReleaseRequest, answers []error) error {
	if len(reqs) != len(answers) {
		return errLengths
	}
	clear(answers)
	return s.batch(ctx, len(reqs), func(i int) (item, semel.Key, int, error) {
		r := &reqs[i]
		err := r.Validate()
		w := &wireRelease{wireKey: wireOf(r.Key), Token: storeapi.FormatToken(r.Token), Unknown: r.Unknown}
		return item{Release: w}, r.Key, len(r.Key.ID) + len(r.Key.Scope), err
	}, settled(answers))
}

// Extend implements semel.Store.
func (s *Store) Extend(ctx context.Context, reqs []semel.ExtendRequest, answers []semel.ExtendAnswer) error {
	if len(reqs) != len(answers) {
		return errLengths
	}
	clear(answers)
	return s.batch(ctx, len(reqs), func(i int) (item, semel.Key, int, error) {
		r := &reqs[i]
		err := r.Validate()
		w := &wireExtend{wireKey: wireOf(r.Key), Token: storeapi.FormatToken(r.Token), Lease: r.Lease.String()}
		return item{Extend: w}, r.Key, len(r.Key.ID) + len(r.Key.Scope), err
	}, func(i int, text json.RawMessage, err error) error {
		if err != nil {
			answers[i].Err = err
			return nil
		}
		var said storeapi.Extended
		if err = json.Unmarshal(text, &said); err == nil {
			answers[i].LeaseEnd, err = readTime(said.LeaseEnd)
		}
		return err
	})
}

// tokenOf returns the token of an item.
func (i *item) tokenOf() (t semel.Token) {
	switch {
	case i.Complete != nil:
		t, _ = storeapi.ParseToken(i.Complete.Token)
	case i.Release != nil:
		t, _ = storeapi.ParseToken(i.Release.Token)
	case i.Extend != nil:
		t, _ = storeapi.ParseToken(i.Extend.Token)
	}
	return t
}

// batch sends n requests, in as many batches as the limits of the server ask for. make
// returns the item of a request with about its size, or why it is refused; each reads its
// answer.
func (s *Store) batch(ctx context.Context, n int, of func(i int) (item, semel.Key, int, error), each func(i int, text json.RawMessage, err error) error) error {
	if s.closed.Load() {
		return fmt.Errorf("httpstore: %w", semel.ErrClosed)
	}
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("httpstore: %w: %w", semel.ErrStoreUnavailable, err)
	}
	var items []item
	var keys []semel.Key
	var at []int
	size := 0
	flush := func() error {
		if len(items) == 0 {
			return nil
		}
		err := s.sendBatch(ctx, items, keys, at, each)
		items, keys, at, size = nil, nil, nil, 0
		return err
	}
	for i := range n {
		made, key, bytes, err := of(i)
		if err != nil {
			if wrong := each(i, nil, err); wrong != nil {
				return wrong
			}
			continue
		}
		bytes = 6*bytes + 512 // an escaped character takes six
		if len(items) == s.limits.MaxBatch || size > 0 && int64(size+bytes) > s.limits.MaxBody {
			if err := flush(); err != nil {
				return err
			}
		}
		items, keys, at, size = append(items, made), append(keys, key), append(at, i), size+bytes
	}
	return flush()
}

// sendBatch sends one batch. Items for whose results the answer had no room are sent again.
func (s *Store) sendBatch(ctx context.Context, items []item, keys []semel.Key, at []int, each func(i int, text json.RawMessage, err error) error) error {
	var said storeapi.Items
	body := struct {
		Items []item `json:"items"`
	}{items}
	_, err := s.call(ctx, http.MethodPost, "batch", body, &said)
	if err != nil {
		return err
	}
	if len(said.Items) != len(items) {
		return fmt.Errorf("httpstore: %d answers to %d requests: %w", len(said.Items), len(items), semel.ErrOutcomeUnknown)
	}
	var left []item
	var leftKeys []semel.Key
	var leftAt []int
	for i, text := range said.Items {
		var refused storeapi.Refused
		err := json.Unmarshal(text, &refused)
		switch {
		case err != nil:
		case i > 0 && full(refused.Error): // the first one always has room, so this ends
			left, leftKeys, leftAt = append(left, items[i]), append(leftKeys, keys[i]), append(leftAt, at[i])
		default:
			err = each(at[i], text, refused.Error.Err(keys[i], items[i].tokenOf()))
		}
		if err != nil {
			return fmt.Errorf("httpstore: read an answer: %w: %w", err, semel.ErrOutcomeUnknown)
		}
	}
	if len(left) == 0 {
		return nil
	}
	if err := s.sendBatch(ctx, left, leftKeys, leftAt, each); err != nil {
		for _, at := range leftAt { // the others have their answers
			if wrong := each(at, nil, err); wrong != nil {
				return wrong
			}
		}
	}
	return nil
}

// full reports whether an item was refused because its result found no room in the answer.
func full(p *storeapi.Problem) bool { return p != nil && p.Kind() == storeapi.Overloaded }

// errChanged is the error of a change to a record that is not the expected one.
var errChanged = errors.New("the record has changed")

// call sends a request until it has an answer, or an error that does not pass. It stops
// when ctx ends, and after Options.Retry. repeated means that an earlier attempt may have
// made the change.
func (s *Store) call(ctx context.Context, method, verb string, request, answer any) (repeated bool, _ error) {
	s.calls.RLock()
	defer s.calls.RUnlock()
	if s.closed.Load() {
		return false, fmt.Errorf("httpstore: %w", semel.ErrClosed)
	}
	if err := context.Cause(ctx); err != nil {
		return false, fmt.Errorf("httpstore: %w: %w", semel.ErrStoreUnavailable, err)
	}
	var body []byte
	if request != nil {
		var err error
		if body, err = json.Marshal(request); err != nil {
			return false, fmt.Errorf("httpstore: %w: %w", err, semel.ErrInvalidRequest)
		}
	}
	id := rand.Text()
	var until time.Time // counts from the first error: an attempt may be silent for longer than Retry
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := s.send(ctx, method, verb, id, body, answer)
		class := semel.Classify(err)
		if class != semel.ClassRetryable && class != semel.ClassUnknown || errors.Is(err, errors.ErrUnsupported) {
			return repeated, err
		}
		repeated = repeated || class == semel.ClassUnknown
		if until.IsZero() {
			until = time.Now().Add(s.opts.Retry)
		}
		if left := time.Until(until); left <= 0 || retry.Sleep(ctx, min(pause, left)) != nil {
			if repeated && class != semel.ClassUnknown {
				err = fmt.Errorf("%w: %w", semel.ErrOutcomeUnknown, err)
			}
			return repeated, err
		}
	}
}

// send sends a request once.
func (s *Store) send(ctx context.Context, method, verb, id string, body []byte, answer any) error {
	r, err := http.NewRequestWithContext(ctx, method, s.base+verb, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("httpstore: %w: %w", err, semel.ErrInvalidRequest)
	}
	r.GetBody = nil // net/http would send the request again by itself, and not say so
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Semel-Request", id) // a repetition gets the same answer
	}
	if s.opts.Token != "" {
		r.Header.Set("Authorization", "Bearer "+s.opts.Token)
	}
	resp, err := s.opts.Client.Do(r)
	if err != nil {
		var dial *net.OpError
		if errors.As(err, &dial) && dial.Op == "dial" {
			return fmt.Errorf("httpstore: %w: %w", semel.ErrStoreUnavailable, err)
		}
		return fmt.Errorf("httpstore: %w: %w", semel.ErrOutcomeUnknown, err)
	}
	defer func() { _ = resp.Body.Close() }() // it was read, or the connection is lost
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("httpstore: read the answer: %w: %w", semel.ErrOutcomeUnknown, err)
	}
	if resp.StatusCode == http.StatusOK {
		if err := json.Unmarshal(text, answer); err != nil {
			return fmt.Errorf("httpstore: read the answer: %w: %w", semel.ErrOutcomeUnknown, err)
		}
		return nil
	}
	var problem storeapi.Problem
	if json.Unmarshal(text, &problem) != nil || problem.Class == "" { // by a server between
		class := semel.ErrOutcomeUnknown
		if resp.StatusCode < 500 && resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode != http.StatusRequestTimeout {
			class = semel.ErrInvalidRequest
		}
		return fmt.Errorf("httpstore: %s answered %s: %w", r.URL.Redacted(), resp.Status, class)
	}
	if problem.Kind() == storeapi.Changed {
		return fmt.Errorf("httpstore: %w: %w", errChanged, problem.Err(semel.Key{}, 0))
	}
	return fmt.Errorf("httpstore: %w", problem.Err(semel.Key{}, 0))
}
