package cli

import (
	"errors"
	"strconv"
	"strings"
)

// parseLossyRate reads a rate between 0 and 1: 0.001, 1e-3 or 0.1%.
func parseLossyRate(text string) (lossyRate, error) {
	number, percent := strings.CutSuffix(text, "%")
	rate, err := strconv.ParseFloat(number, 64)
	if percent {
		rate /= 100
	}
	if err != nil || !(rate > 0 && rate < 1) {
		return 0, errors.New("not a rate: write a number above 0 and below 1, as 0.001 or 0.1%")
	}
	return lossyRate(rate), nil
}
