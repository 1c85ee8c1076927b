package services

import (
	"context"
	"errors"
	"fmt"
	"time"
)

func addrs(servers []*Server) []string {
	list := make([]string, len(servers))
	for i, server := range servers {
		list[i] = server.Addr()
	}
	return list
}

func closeAll(servers []*Server) error {
	var failed []error
	for _, server := range servers {
		if server != nil {
			failed = append(failed, server.Close())
		}
	}
	return errors.Join(failed...)
}

// until calls ask repeatedly until it returns no error, for at most a minute.
func until(ctx context.Context, what string, ask func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	ticker := time.NewTicker(5 * pollPause)
	defer ticker.Stop()
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("services: waiting for %s: %w (%w)", what, err, ctx.Err())
		}
	}
}
