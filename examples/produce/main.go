// Command produce sends the lines of a file to a Kafka topic. It creates a missing
// topic, with one partition or as many as its last argument says, and adds partitions
// to a topic that has fewer. It is for trying the guides in docs/guides.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	partitions := 1
	if len(os.Args) == 4 {
		partitions, _ = strconv.Atoi(os.Args[3]) // 0 if it is not a number
	}
	if len(os.Args) < 3 || len(os.Args) > 4 || partitions < 1 {
		log.Fatal("usage: KAFKA_BROKERS=host:port produce TOPIC FILE [PARTITIONS]")
	}
	sent, err := run(context.Background(), os.Args[1], os.Args[2], partitions)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("sent %d records to %s\n", sent, os.Args[1])
}

func run(ctx context.Context, topic, file string, partitions int) (sent int, err error) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(os.Getenv("KAFKA_BROKERS"), ",")...),
		kgo.DefaultProduceTopic(topic),
		kgo.UnknownTopicRetries(-1), // a broker may learn late of a topic that was just created
		kgo.RecordDeliveryTimeout(time.Minute),
	)
	if err != nil {
		return 0, err
	}
	defer client.Close()
	if err := ensureTopic(ctx, kadm.NewClient(client), topic, partitions); err != nil {
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

// ensureTopic makes sure that a topic has at least this many partitions.
func ensureTopic(ctx context.Context, admin *kadm.Client, topic string, partitions int) error {
	const replicas = 1
	_, err := admin.CreateTopic(ctx, int32(partitions), replicas, nil, topic)
	if !errors.Is(err, kerr.TopicAlreadyExists) {
		return err
	}
	answers, err := admin.UpdatePartitions(ctx, partitions, topic)
	if err == nil {
		err = answers.Error()
	}
	if errors.Is(err, kerr.InvalidPartitions) {
		return nil // it has at least as many
	}
	return err
}
