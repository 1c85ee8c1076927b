package filter_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/semel-dev/semel/filter"
)

func ExampleNewBlocked() {
	f, err := filter.NewBlocked(&filter.Options{Capacity: 10_000, ErrorRate: 0.001})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, id := range []string{"order-1", "order-2", "order-1"} {
		maybeSeen, err := f.Add([]byte(id))
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(id, "may have been seen:", maybeSeen)
	}
	// Output:
	// order-1 may have been seen: false
	// order-2 may have been seen: false
	// order-1 may have been seen: true
}

func ExampleBlocked_Add() {
	f, err := filter.NewBlocked(&filter.Options{Capacity: 1, WhenFull: filter.Refuse})
	if err != nil {
		fmt.Println(err)
		return
	}
	f.Add([]byte("order-1"))
	_, err = f.Add([]byte("order-2"))
	fmt.Println(errors.Is(err, filter.ErrFull), f.Has([]byte("order-2")))
	// Output: true false
}

func ExampleNewRotating() {
	f, err := filter.NewRotating(&filter.RotatingOptions{Capacity: 10_000, Window: time.Hour})
	if err != nil {
		fmt.Println(err)
		return
	}
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	f.Advance(start)
	f.Add([]byte("order-1"))
	for _, later := range []time.Duration{time.Hour, 2 * time.Hour} {
		f.Advance(start.Add(later))
		fmt.Println("after", later, f.Has([]byte("order-1")))
	}
	// Output:
	// after 1h0m0s true
	// after 2h0m0s false
}
