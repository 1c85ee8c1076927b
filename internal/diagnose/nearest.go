package diagnose

import "strings"

// Nearest returns the candidate that word is most likely a typo of. Either at
// most a third of its letters differ, and no more than two, or word is the start
// of exactly one candidate.
func Nearest(word string, candidates []string) (string, bool) {
	best, bestDistance := "", min(max(len(word)/3, 1), 2)
	begun := 0
	var beginning string
	for _, candidate := range candidates {
		if d := editDistance(word, candidate); d <= bestDistance && (best == "" || d < bestDistance) {
			best, bestDistance = candidate, d
		}
		if len(word) > 1 && strings.HasPrefix(candidate, word) {
			begun++
			beginning = candidate
		}
	}
	if best == "" && begun == 1 {
		return beginning, true
	}
	return best, best != ""
}

// editDistance counts the insertions, deletions, replacements and swaps of
// adjacent letters that turn a into b.
func editDistance(a, b string) int {
	before := make([]int, len(b)+1) // row i-2
	last := make([]int, len(b)+1)   // row i-1
	row := make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
