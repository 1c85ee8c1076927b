package filter

import "math"

// blockBits is the size of a block: one cache line.
const blockBits = 512

// maxProbes is the number of independent probes in a block that two hash words
// give. See Blocked.has.
const maxProbes = 14

// margin is the share of an error rate that filters are sized for. The rate of
// a filter depends on the ids it happens to hold. In filters of a million ids
// or more it differs from the expected rate by well below three percent.
const margin = 0.97

// offered returns how many distinct ids a filter may have been given when its
// Len is n. Len leaves out false positives, which are at most a share p of the
// ids.
func offered(n int, p float64) float64 { return float64(n) / (1 - p) }

// bloomRate returns the false positive rate of a Bloom filter of m bits and k
// probes that holds n ids. It is the expectation of (set bits/m)^k. The first
// term is that of Bloom 1970, with the expected number of set bits. The second
// term covers the variance of that number, which matters in small filters (Bose
// et al., "On the false-positive rate of Bloom filters", 2008).
func bloomRate(n, m float64, k int) float64 {
	unset := math.Exp(float64(k) * n * math.Log1p(-1/m))
	load := float64(k) * n / m
	fill := 1 - unset
	variance := unset * (1 - (1+load)*unset) / m
	pairs := float64(k) * float64(k-1) / 2
	return math.Pow(fill, float64(k)) * (1 + pairs*variance/(fill*fill))
}

// blockRates returns the rates at which k probes all find their bit set, for 0
// to most ids in a block.
func blockRates(k, most int) []float64 {
	rates := make([]float64, most+1)
	for i := 1; i <= most; i++ {
		rates[i] = bloomRate(float64(i), blockBits, k)
	}
	return rates
}

// blockedRate returns the rate of a filter whose blocks hold load ids on
// average. Ids fall into blocks at random, so the number of ids in a block has
// a Poisson distribution. The rate is the mixture of the rates of the
// blocks (Putze, Sanders and Singler, "Cache-, Hash- and Space-Efficient Bloom
// Filters", 2007, section 3). It is higher than the rate at the average load,
// because crowded blocks lose more than empty blocks gain. For few blocks the
// distribution is binomial and its mixture is lower, so the result errs
// upwards.
func blockedRate(rates []float64, load float64) float64 {
	chance := math.Exp(-load) // that a block has i ids
	var sum float64
	for i, rate := range rates {
		if i > 0 {
			chance *= load / float64(i)
		}
		sum += chance * rate
	}
	return sum
}

// mostIn returns a number of ids that a block exceeds too rarely to matter when
// blocks hold load ids on average.
func mostIn(load float64) int { return int(load + 12*math.Sqrt(load) + 30) }

// maxLoad is more than the number of ids that a block can hold at the highest
// error rate.
const maxLoad = 400

// blockedSize returns the fewest blocks, and the number of probes, that hold n
// ids at the rate p.
func blockedSize(n int, p float64) (blocks, k int) {
	ids := offered(n, p)
	p *= margin
	// Because the load is uneven, one or two probes fewer than usual are best.
	most := min(maxProbes, max(1, int(math.Ceil(math.Log2(1/p)))))
	var load float64
	for try := max(1, most-3); try <= most; try++ {
		if l := blockLoad(try, p); l > load {
			load, k = l, try
		}
	}
	return max(1, int(math.Ceil(ids/load))), k
}

// blockLoad returns the highest average number of ids in a block at which k
// probes keep the rate p.
func blockLoad(k int, p float64) float64 {
	// This is the load of a filter without blocks. With blocks the load is
	// always lower.
	high := min(maxLoad, -blockBits*math.Log1p(-math.Pow(p, 1/float64(k)))/float64(k))
	rates := blockRates(k, mostIn(high))
	low := 0.0
	for range 40 {
		middle := (low + high) / 2
		if blockedRate(rates, middle) <= p {
			low = middle
		} else {
			high = middle
		}
	}
	return low
}
