// Command produce sends the lines of a file to a Kafka topic, which it creates
// if it is missing. It is for trying the guides in docs/guides.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: KAFKA_BROKERS=host:port produce TOPIC FILE")
	}
	sent, err := run(context.Background(), os.Args[1], os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("sent %d records to %s\n", sent, os.Args[1])
}

func run(ctx context.Context, topic, file string) (sent int, err error) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(os.Getenv("KAFKA_BROKERS"), ",")...),
		kgo.DefaultProduceTopic(topic),
	)
	if err != nil {
		return 0, err
	}
	defer client.Close()
	const partitions, replicas = 1, 1
	_, err = kadm.NewClient(client).CreateTopic(ctx, partitions, replicas, nil, topic)
	if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
		return 0, err
	}
	input, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer input.Close()
	lines := bufio.NewScanner(input)
	for ; lines.Scan(); sent++ {
		record := kgo.StringRecord(lines.Text())
		if err := client.ProduceSync(ctx, record).FirstErr(); err != nil {
			return sent, err
		}
	}
	return sent, lines.Err()
}
