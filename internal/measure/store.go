package measure

import (
	"time"

	"github.com/semel-dev/semel"
)

// Counted sets the counts of a store, measured at a time.
func Counted(b Backend, store string, c *semel.Counts, at time.Time) {
	b.Bind(Keys, store, semel.Claimed.String())(float64(c.Claimed))
	b.Bind(Keys, store, semel.Done.String())(float64(c.Done))
	b.Bind(Keys, store, semel.Unknown.String())(float64(c.Unknown))
	b.Bind(StoreBytes, store, "memory")(float64(c.MemoryBytes))
	b.Bind(StoreBytes, store, "disk")(float64(c.DiskBytes))
	b.Bind(WindowEffective, store)(c.Oldest.Seconds())
	b.Bind(StoreMeasured, store)(unix(at))
}

// Layer sets whether a stack skips a layer.
func Layer(b Backend, store, layer string, down bool) {
	b.Bind(LayerDown, store, layer)(number(down))
}

// Filter sets the fill of a filter in a stack, if fill is not below 0, and
// counts its false positives.
func Filter(b Backend, store, layer string, fill float64, falsePositives int64) {
	if fill >= 0 {
		b.Bind(BloomFill, store, layer)(fill)
	}
	b.Bind(BloomFalsePositives, store, layer)(float64(falsePositives))
}

// Passed counts claims that a stack let through without its durable store.
func Passed(b Backend, store string, keys int) {
	b.Bind(FailOpenMessages, "", store)(float64(keys))
}

// Cleaning records that a process waits for its turn to clean up a store.
func Cleaning(b Backend, store string, at time.Time) {
	b.Bind(CleanupLast, store)(unix(at))
	cleaned(b, store, 0, 0, 0)
}

// Cleaned counts a clean-up that deleted keys and ended with err.
func Cleaned(b Backend, store string, keys int64, err error, at time.Time) {
	if err != nil {
		cleaned(b, store, keys, 0, 1)
		return
	}
	cleaned(b, store, keys, 1, 0)
	b.Bind(CleanupLast, store)(unix(at))
}

func cleaned(b Backend, store string, keys int64, ok, failed float64) {
	b.Bind(CleanupKeys, store)(float64(keys))
	b.Bind(CleanupPasses, store, "ok")(ok)
	b.Bind(CleanupPasses, store, "error")(failed)
}

func unix(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }
