package caller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
)

const (
	// refreshAfter is the age at which keys are read again.
	refreshAfter = 5 * time.Minute
	// readPause is the least time between two reads of a key set, so that tokens with
	// unknown keys cannot make many.
	readPause = 10 * time.Second
	// keysLast is how long keys count that cannot be read again.
	keysLast = 24 * time.Hour
	// mostKeyBytes bounds a key set.
	mostKeyBytes = 1 << 20
	// readTime is the time-out of the default client.
	readTime = 5 * time.Second
)

// keySet is a set of public keys that is read again from time to time, by the request
// that finds it old. Other requests use the old keys until then.
type keySet struct {
	source  string // address or file
	client  *http.Client
	reading chan struct{} // has a value while a request reads

	tried time.Time // when the last read began; belongs to the request that reads

	mu   sync.Mutex // guards the fields below; never held during a read
	keys []jose.JSONWebKey
	read time.Time // when keys were read
	err  error     // of the last read
}

func newKeySet(source string, client *http.Client) *keySet {
	if client == nil {
		client = &http.Client{Timeout: readTime}
	}
	return &keySet{source: source, client: client, reading: make(chan struct{}, 1)}
}

// find returns the keys that may have signed a token: those with its key id, or all if it
// has none. An error says that the keys could not be read.
func (s *keySet) find(ctx context.Context, id, algorithm string) ([]any, error) {
	keys, old, _ := s.known(id, algorithm)
	switch {
	case len(keys) > 0 && !old:
		return keys, nil
	case len(keys) > 0: // the old ones do while another request reads the new ones
		select {
		case s.reading <- struct{}{}:
		default:
			return keys, nil
		}
	default:
		select {
		case s.reading <- struct{}{}:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	defer func() { <-s.reading }()
	s.load(ctx)
	keys, _, err := s.known(id, algorithm)
	return keys, err
}

// known returns the keys of a token among those that were read, and whether it is time to
// read them again.
func (s *keySet) known(id, algorithm string) (keys []any, old bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	age := time.Since(s.read)
	if age > keysLast {
		return nil, true, fmt.Errorf("caller: read the keys at %s: %w", s.source, s.err)
	}
	for i := range s.keys {
		k := &s.keys[i]
		if (k.Use == "" || k.Use == "sig") && (k.Algorithm == "" || k.Algorithm == algorithm) && (id == "" || k.KeyID == id) {
			keys = append(keys, k.Key)
		}
	}
	return keys, age > refreshAfter, nil
}

// load reads the keys, unless that was tried a moment ago. If it fails, the old ones stay.
// The caller is the one that reads.
func (s *keySet) load(ctx context.Context) {
	if time.Since(s.tried) < readPause {
		return
	}
	s.tried = time.Now()
	// The keys are for other requests too, so that the end of this one changes nothing.
	data, err := s.fetch(context.WithoutCancel(ctx))
	var keys []jose.JSONWebKey
	if err == nil {
		keys, err = parseKeys(data)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err = err; err == nil {
		s.keys, s.read = keys, time.Now()
	}
}

func (s *keySet) fetch(ctx context.Context) ([]byte, error) {
	if !strings.HasPrefix(s.source, "http://") && !strings.HasPrefix(s.source, "https://") {
		return os.ReadFile(s.source)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.source, nil)
	if err != nil {
		return nil, err
	}
	resp, err := s.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the answer is %s", resp.Status)
	}
	return io.ReadAll(io.LimitReader(resp.Body, mostKeyBytes))
}

// CountKeys returns how many public keys a JWK set has. source is its address or file. Use
// it to check the source before tokens come.
func CountKeys(ctx context.Context, source string) (int, error) {
	s := newKeySet(source, nil)
	data, err := s.fetch(ctx)
	if err != nil {
		return 0, fmt.Errorf("caller: read the keys at %s: %w", source, err)
	}
	keys, err := parseKeys(data)
	if err != nil {
		return 0, fmt.Errorf("caller: read the keys at %s: %w", source, err)
	}
	return len(keys), nil
}

// parseKeys returns the public keys of a JWK set. Keys of unknown kinds are left out, as
// RFC 7517 says, and so are secrets.
func parseKeys(data []byte) ([]jose.JSONWebKey, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(data, &set); err != nil {
		return nil, fmt.Errorf("it is no JWK set: %w", err)
	}
	var keys []jose.JSONWebKey
	for _, raw := range set.Keys {
		var key jose.JSONWebKey
		if key.UnmarshalJSON(raw) != nil {
			continue
		}
		if public := key.Public(); public.Key != nil && public.Valid() {
			keys = append(keys, public)
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("the JWK set has no public key")
	}
	return keys, nil
}
