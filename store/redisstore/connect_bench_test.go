package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/semel-dev/semel/test/services/servicestest"
)

// BenchmarkClient measures the cost of the time-out and the circuit of a
// Client, compared with the client library alone.
func BenchmarkClient(b *testing.B) {
	server := servicestest.StartRedis(b, nil)
	client := connect(b, server.URL(), nil)
	for name, c := range map[string]rueidis.Client{"bare": client.Client, "Client": client} {
		for _, callers := range []int{1, 64, 1024} {
			b.Run(fmt.Sprintf("%s/callers=%d", name, callers), func(b *testing.B) {
				var n atomic.Int64
				prefix := servicestest.Prefix()
				b.SetParallelism(max(1, callers/2)) // with two processors
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						set := c.B().Set().Key(prefix + strconv.FormatInt(n.Add(1), 36)).Value("1").Nx().Ex(time.Minute).Build()
						if err := c.Do(context.Background(), set).Error(); err != nil {
							b.Fatal(err)
						}
					}
				})
			})
		}
	}
}

// BenchmarkFilter measures keys, in calls of 256.
func BenchmarkFilter(b *testing.B) {
	client := filterClient(b)
	const size = 256
	for _, form := range []FilterForm{FilterModule, FilterBits} {
		f := newFilter(b, client, FilterOptions{Capacity: 20_000_000, Form: form})
		answers := make([]bool, size)
		for name, call := range map[string]func(from int) error{
			"Add":        func(from int) error { return f.Add(b.Context(), idsFrom("b", from, size)) },
			"MayContain": func(from int) error { return f.MayContain(b.Context(), idsFrom("b", from, size), answers) },
		} {
			b.Run(string(form)+"/"+name, func(b *testing.B) {
				for i := 0; i < b.N; i += size {
					if err := call(i); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "keys/s")
			})
		}
	}
}
