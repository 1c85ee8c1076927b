package services_test

import (
	"context"
	"fmt"

	"github.com/semel-dev/semel/internal/services"
)

// A server is killed and has its data when it is back.
func ExampleStartRedis() {
	ctx := context.Background()
	server, err := services.StartRedis(ctx, &services.RedisOptions{Args: []string{"--appendfsync", "always"}})
	if err != nil {
		fmt.Println(err) // it may say which command installs it
		return
	}
	defer func() { _ = server.Close() }()
	fmt.Println(services.RedisDo(ctx, server.Addr(), "SET", "k", "v"))
	fmt.Println(server.Kill(), server.Restart(ctx))
	fmt.Println(services.RedisDo(ctx, server.Addr(), "GET", "k"))
}
