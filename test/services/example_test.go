package services_test

import (
	"context"
	"fmt"

	"github.com/semel-dev/semel/test/services"
)

// A killed server has its data after the restart.
func ExampleStartRedis() {
	ctx := context.Background()
	server, err := services.StartRedis(ctx, &services.RedisOptions{Args: []string{"--appendfsync", "always"}})
	if err != nil {
		fmt.Println(err) // the error may name the command that installs the server
		return
	}
	defer func() { _ = server.Close() }()
	fmt.Println(services.RedisDo(ctx, server.Addr(), "SET", "k", "v"))
	fmt.Println(server.Kill(), server.Restart(ctx))
	fmt.Println(services.RedisDo(ctx, server.Addr(), "GET", "k"))
}
