package logstore

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/semel-dev/semel"
)

// exampleDir returns the directory of an example's store.
func exampleDir() string {
	dir, err := os.MkdirTemp("", "logstore")
	if err != nil {
		panic(err)
	}
	return dir
}

func ExampleOpen() {
	dir := exampleDir()
	defer os.RemoveAll(dir)
	for range 2 {
		store, err := Open(dir, &Options{Fsync: Always})
		if err != nil {
			fmt.Println(err)
			return
		}
		key := semel.Key{Scope: "orders", ID: "42"}
		answers := make([]semel.ClaimAnswer, 1)
		err = store.Claim(context.Background(), []semel.ClaimRequest{{Key: key, Done: true, Window: 24 * time.Hour}}, answers)
		fmt.Println(answers[0].Decision, err)
		store.Close()
	}
	// Output:
	// fresh <nil>
	// duplicate <nil>
}

func ExampleStore_Begin() {
	dir := exampleDir()
	defer os.RemoveAll(dir)
	s, err := Open(dir, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	tx, err := s.Begin(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer tx.Abort()
	digester := s.Digester("lines")
	keys := []semel.Digest{digester.String("a"), digester.String("b"), digester.String("a")}
	decisions := make([]semel.Decision, len(keys))
	if err := tx.Claim(TxKeys{Digests: keys}, semel.Forever, decisions); err != nil {
		fmt.Println(err)
		return
	}
	tx.Set("output length", []byte("17"))
	fmt.Println(decisions, tx.Commit(context.Background()))
	length, _ := s.Value("output length")
	fmt.Println(string(length))
	// Output:
	// [fresh fresh duplicate] <nil>
	// 17
}
