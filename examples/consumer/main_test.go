package main

import (
	"context"
	"fmt"
	"os"
)

func Example() {
	dir, err := os.MkdirTemp("", "consumer")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	for range 2 { // the second start finds the key of the first
		if err := run(context.Background(), dir); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// charging alice
	// receipt for order-42 (duplicate: false)
	// receipt for order-42 (duplicate: true)
	// receipt for order-42 (duplicate: true)
	// receipt for order-42 (duplicate: true)
	// receipt for order-42 (duplicate: true)
	// receipt for order-42 (duplicate: true)
}
