package httpsrc_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/brokertest"
	"github.com/semel-dev/semel/broker/httpsrc"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/memstore"
	"github.com/semel-dev/semel/test/services/servicestest"
)

func TestSourcePassesTheSuite(t *testing.T) {
	t.Parallel()
	for name, many := range map[string]int{"a message in a request": 1, "several messages in a request": 7} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			brokertest.RunSource(t, brokertest.SourceHarness{Messages: 300, Unordered: true, Alone: true, Joint: many > 1, New: func(tb testing.TB) brokertest.SourcePlace { return senders(tb, many) }})
		})
	}
}

// senders repeat each request until they get a 2xx answer.
func senders(tb testing.TB, many int) brokertest.SourcePlace {
	address := servicestest.FreeAddr(tb) // the address stays while sources come and go
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	ctx, stop := context.WithCancel(context.Background())
	var sending sync.WaitGroup
	tb.Cleanup(func() { stop(); sending.Wait() })
	return brokertest.SourcePlace{
		Partitions: 3,
		Produce: func(_ context.Context, list []brokertest.Numbered) error {
			for some := range slices.Chunk(list, many) {
				var bodies [][]byte
				for _, m := range some {
					bodies = append(bodies, m.Body)
				}
				body := bytes.Join(bodies, []byte{'\n'})
				sending.Go(func() {
					for ctx.Err() == nil && !sent(ctx, client, "http://"+address, body, some[0].Headers...) {
						pause(ctx, 3*time.Millisecond)
					}
				})
			}
			return nil
		},
		Open: func(context.Context) (pipeline.Source, error) {
			opts := &httpsrc.Options{Listen: address}
			if many > 1 {
				var err error
				if opts.Split, err = httpsrc.ParseSplit("lines"); err != nil {
					return nil, err
				}
			}
			return httpsrc.Open(opts)
		},
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// sent reports whether the answer says that the message is settled. One that is parked while all
// others are gets a 503, for its sender to notice, and is settled.
func sent(ctx context.Context, client *http.Client, url string, body []byte, headers ...semel.Header) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return false
	}
	for _, h := range headers {
		req.Header.Add(h.Name, string(h.Value))
	}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err == nil && (resp.StatusCode/100 == 2 || resp.Header.Get("Semel-Decision") == "parked")
}

// TestAThousandSendersAtOnce drains the source in the middle. Some senders
// leave early.
func TestAThousandSendersAtOnce(t *testing.T) {
	t.Parallel()
	store, err := memstore.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	rule, err := key.ParseRule("line")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	effects := map[string]int{}
	begin := func(listen string) (address string, end func()) {
		source, err := httpsrc.Open(&httpsrc.Options{Listen: listen})
		if err != nil {
			t.Fatal(err)
		}
		session, err := pipeline.NewTwoPhase(store, pipeline.NewHandler(func(_ context.Context, m pipeline.Delivery) (semel.Result, error) {
			mu.Lock()
			defer mu.Unlock()
			effects[string(m.Body)]++
			return semel.Result{Kind: semel.Value, Data: []byte(strings.ToUpper(string(m.Body)))}, nil
		}),

			nil)
		if err != nil {
			t.Fatal(err)
		}
		r, err := pipeline.NewRunner(source, session, &pipeline.Options{Key: rule, OnMissing: pipeline.MissingDrop, OnLate: pipeline.Drop, OnMismatch: pipeline.Drop, Failure: pipeline.Failure{Then: pipeline.Drop}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		running.Go(func() {
			if err := r.Run(ctx); err != nil {
				t.Errorf("run: %v", err)
			}
		})
		return source.Addr().String(), func() { cancel(); running.Wait() }
	}
	address, end := begin(servicestest.FreeAddr(t))
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	const n = 1000
	var sending sync.WaitGroup
	var done atomic.Int32
	half := make(chan struct{})
	for i := range n {
		sending.Go(func() {
			body := []byte{'m', byte('a' + i%26), byte('a' + i/26%26), byte('a' + i/26/26)}
			for tries := 0; ; tries++ {
				ctx, cancel := context.WithCancel(t.Context())
				if i%10 == 0 && tries == 0 { // this sender leaves before the answer
					time.AfterFunc(time.Duration(i)*time.Microsecond, cancel)
				}
				ok := sent(ctx, client, "http://"+address, body)
				cancel()
				if ok {
					break
				}
				pause(t.Context(), 5*time.Millisecond)
				if t.Context().Err() != nil {
					return
				}
			}
			if done.Add(1) == n/2 {
				close(half)
			}
		})
	}
	<-half
	end()
	_, end = begin(address)
	sending.Wait()
	end()
	if len(effects) != n {
		t.Errorf("%d messages had an effect, want %d", len(effects), n)
	}
	for body, times := range effects {
		if times != 1 {
			t.Errorf("%q had its effect %d times", body, times)
		}
	}
}
