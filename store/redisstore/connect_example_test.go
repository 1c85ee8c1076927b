package redisstore_test

import (
	"context"
	"fmt"
	"time"

	"github.com/semel-dev/semel/store/redisstore"
)

func ExampleConnect() {
	ctx := context.Background()
	store, err := redisstore.Connect(ctx, "redis://localhost:6379", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	fmt.Println(store.Ready(ctx))
}

// The master is under Sentinel, and several stores may share the client.
func ExampleNewClient() {
	ctx := context.Background()
	client, err := redisstore.NewClient(ctx, "redis://sentinel-1:26379,sentinel-2:26379,sentinel-3:26379", &redisstore.ClientOptions{
		Master:   "orders",
		Username: "semel",
		Password: "from a file",
		Timeout:  time.Second,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	store, err := redisstore.New(ctx, client, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	findings, err := store.Examine(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, f := range findings {
		fmt.Println(f.Severity, f.Subject, f.Found)
	}
	if status := client.Status(); status.Open {
		fmt.Println("no answer since", status.Since)
	}
}
