package pending

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
)

// Prefix is the start of a note: the metadata of a committed offset before which records
// wait.
const Prefix = "waiting for rows: "

// End stands behind a note if more follows.
const End = "; "

// ParseNote returns the offsets of the records that wait, in ascending order.
func ParseNote(metadata string) (offsets []int64, err error) {
	text, ok := strings.CutPrefix(metadata, Prefix)
	if !ok {
		return nil, nil // the client writes its member id
	}
	text, _, _ = strings.Cut(text, End)
	for number := range strings.SplitSeq(text, ",") {
		offset, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			return nil, err
		}
		offsets = append(offsets, offset)
	}
	return offsets, nil
}

// Note returns the metadata that ParseNote reads.
func Note(offsets []int64) string {
	var list []string
	for _, offset := range offsets {
		list = append(list, strconv.FormatInt(offset, 10))
	}
	return Prefix + strings.Join(list, ",")
}

// Refuse returns an error if records of some topics wait, by the committed offsets of a
// group. It is for options with which none waits: they would skip those records.
func Refuse(group string, committed kadm.OffsetResponses, topics []string) error {
	for _, topic := range topics {
		for number, at := range committed[topic] {
			offsets, err := parse(group, at)
			if err != nil {
				return err
			}
			if len(offsets) > 0 {
				return refused(group, topic, number, len(offsets))
			}
		}
	}
	return nil
}

func refused(group, topic string, number int32, n int) error {
	return fmt.Errorf("kafka: group %s: %d records of %s/%d wait for rows, and these options let none wait: run the former options and group, with MissingWait (missing: wait), until none waits: %w", group, n, topic, number, semel.ErrInvalidRequest)
}

// parse returns the offsets of the records that wait before a committed offset of a group.
func parse(group string, at kadm.OffsetResponse) ([]int64, error) {
	offsets, err := ParseNote(at.Metadata)
	if err != nil {
		return nil, cluster.Damaged("kafka: group %s: the metadata %q of its offset of %s/%d is not what Semel writes: %w", group, at.Metadata, at.Topic, at.Partition, err)
	}
	return offsets, nil
}

// TooLong explains the error of a commit with a note that brokers do not take.
func TooLong(err error) error {
	if !errors.Is(err, kerr.OffsetMetadataTooLarge) {
		return err
	}
	return fmt.Errorf("the brokers do not take what Semel writes as metadata of the group's offset: set their offset.metadata.max.bytes to 4096, which is its default: %w: %w", semel.ErrInvalidRequest, err)
}
