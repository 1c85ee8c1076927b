package kafka

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf16"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
)

// ErrNoTransaction says that a transaction does not exist or has ended.
var ErrNoTransaction = errors.New("there is no such transaction")

// ErrOffsetsHidden says that the user may not read __consumer_offsets.
var ErrOffsetsHidden = errors.New("the user may not read " + offsetsTopic)

// Admin inspects transactions and ends those that hang. All methods are safe for
// concurrent use and block until the brokers have answered.
type Admin struct {
	opts   []kgo.Opt
	client *kgo.Client
	adm    *kadm.Client
}

// OpenAdmin connects. It blocks until a broker has answered.
func OpenAdmin(ctx context.Context, client []kgo.Opt) (*Admin, error) {
	c, err := cluster.Dial(ctx, client...)
	if err != nil {
		return nil, err
	}
	return &Admin{opts: client, client: c, adm: kadm.NewClient(c)}, nil
}

// Close ends the connections.
func (a *Admin) Close() error {
	a.client.Close()
	return nil
}

// Transaction is the state of one transactional id.
type Transaction struct {
	ID string
	// State is the brokers' name: Empty, Ongoing, PrepareCommit, PrepareAbort,
	// CompleteCommit, CompleteAbort, Dead, PrepareEpochFence.
	State       string
	Coordinator int32
	ProducerID  int64
	Epoch       int16
	// Timeout is when the brokers abort it.
	Timeout time.Duration
	// Started is zero if no transaction is open.
	Started time.Time
	// Partitions are the partitions it wrote to, as topic/number.
	Partitions []string
}

func underWay(state string) bool { return state == "Ongoing" || strings.HasPrefix(state, "Prepare") }

// UnderWay reports whether the transaction has not ended.
func (t *Transaction) UnderWay() bool { return underWay(t.State) }

// Transactions returns the transactional ids that the brokers know, sorted. With ids,
// it returns only those, and ErrNoTransaction for an unknown one.
func (a *Admin) Transactions(ctx context.Context, ids ...string) ([]Transaction, error) {
	if len(ids) == 0 {
		listed, err := a.adm.ListTransactions(ctx, nil, nil)
		if err != nil {
			return nil, fmt.Errorf("kafka: list transactions: %w", err)
		}
		if ids = listed.TransactionalIDs(); len(ids) == 0 {
			return nil, nil
		}
	}
	described, err := a.adm.DescribeTransactions(ctx, ids...)
	if err != nil {
		return nil, fmt.Errorf("kafka: describe transactions: %w", err)
	}
	slices.Sort(ids)
	var list []Transaction
	for _, id := range ids {
		d, ok := described[id]
		switch {
		case !ok, errors.Is(d.Err, kerr.TransactionalIDNotFound):
			return nil, fmt.Errorf("%s: %w", id, ErrNoTransaction)
		case d.Err != nil:
			return nil, fmt.Errorf("kafka: describe transaction %s: %w", id, d.Err)
		}
		t := Transaction{
			ID: id, State: d.State, Coordinator: d.Coordinator, ProducerID: d.ProducerID, Epoch: d.ProducerEpoch,
			Timeout: time.Duration(d.TimeoutMillis) * time.Millisecond,
		}
		if d.StartTimestamp > 0 {
			t.Started = time.UnixMilli(d.StartTimestamp)
		}
		for _, topic := range d.Topics.Sorted() {
			for _, p := range topic.Partitions {
				t.Partitions = append(t.Partitions, fmt.Sprintf("%s/%d", topic.Topic, p))
			}
		}
		list = append(list, t)
	}
	return list, nil
}

// OpenTransaction is a transaction as a partition sees it. Readers with read_committed
// stop at Start.
type OpenTransaction struct {
	Topic      string
	Partition  int32
	Start      int64
	ProducerID int64
	Epoch      int16
	// ID is the transactional id, if a coordinator knows the producer.
	ID string
	// Last is the time of the producer's last write there.
	Last time.Time
	// Hanging says that no coordinator has it open in this partition, so it does not
	// end by itself.
	Hanging bool

	coordinatorEpoch int32
}

// Places are where to look for transactions.
type Places struct {
	// Topics are searched with all their partitions.
	Topics []string
	// Groups are consumer groups. The partitions of __consumer_offsets with their
	// offsets are searched.
	Groups []string
}

// Open returns the open transactions in some places. A missing topic has none. If the
// error wraps ErrOffsetsHidden, the list still holds the transactions of the topics.
func (a *Admin) Open(ctx context.Context, in Places) ([]OpenTransaction, error) {
	list, hidden, err := a.open(ctx, in)
	if err != nil || len(list) == 0 {
		return nil, errors.Join(err, hidden)
	}
	if err := a.trace(ctx, list); err != nil {
		return nil, err
	}
	// A transaction that has ended since is unknown to its coordinator, and not open
	// either.
	still, hidden, err := a.open(ctx, in)
	if err != nil {
		return nil, err
	}
	list = slices.DeleteFunc(list, func(o OpenTransaction) bool {
		return !slices.ContainsFunc(still, func(s OpenTransaction) bool {
			return s.Topic == o.Topic && s.Partition == o.Partition && s.Start == o.Start && s.ProducerID == o.ProducerID
		})
	})
	return list, hidden
}

// trace finds out which transactions the coordinators have open. A producer whose
// transaction hangs in one partition may have continued in others.
func (a *Admin) trace(ctx context.Context, list []OpenTransaction) error {
	known, err := a.adm.ListTransactions(ctx, nil, nil)
	if err != nil {
		return fmt.Errorf("kafka: list transactions: %w", err)
	}
	var goingOn []string
	for i := range list {
		o := &list[i]
		o.Hanging = true
		for _, t := range known {
			if t.ProducerID == o.ProducerID {
				o.ID = t.TxnID
				if o.Hanging = !underWay(t.State); !o.Hanging {
					goingOn = append(goingOn, o.ID)
				}
			}
		}
	}
	if len(goingOn) == 0 {
		return nil
	}
	described, err := a.adm.DescribeTransactions(ctx, goingOn...)
	if err != nil {
		return fmt.Errorf("kafka: describe transactions: %w", err)
	}
	for i := range list {
		o := &list[i]
		if d, ok := described[o.ID]; ok && !o.Hanging && d.Err == nil && underWay(d.State) {
			o.Hanging = !d.Topics.Lookup(o.Topic, o.Partition)
		}
	}
	return nil
}

// open returns what Open does, without the coordinators' answers. hidden is the reason
// why __consumer_offsets was not searched.
func (a *Admin) open(ctx context.Context, in Places) (list []OpenTransaction, hidden, err error) {
	if len(in.Topics) > 0 {
		meta, err := a.adm.Metadata(ctx, in.Topics...)
		if err != nil {
			return nil, nil, fmt.Errorf("kafka: %w", err)
		}
		set := kadm.TopicsSet{}
		for _, topic := range in.Topics {
			if t := meta.Topics[topic]; t.Err == nil {
				set.Add(topic, t.Partitions.Numbers()...)
			}
		}
		if list, err = a.openIn(ctx, set); err != nil {
			return nil, nil, err
		}
	}
	held, err := a.offsetsOf(ctx, in.Groups)
	if err == nil && !slices.Contains(in.Topics, offsetsTopic) {
		var more []OpenTransaction
		more, err = a.openIn(ctx, held)
		list = append(list, more...)
	}
	if errors.Is(err, kerr.TopicAuthorizationFailed) {
		return list, fmt.Errorf("kafka: the offsets of %s were not checked: %w", strings.Join(in.Groups, ", "), ErrOffsetsHidden), nil
	}
	return list, nil, err
}

// offsetsTopic holds the offsets of groups.
const offsetsTopic = "__consumer_offsets"

// offsetsOf returns the partitions that hold the offsets of groups. The set is empty
// before the first group commits.
func (a *Admin) offsetsOf(ctx context.Context, groups []string) (kadm.TopicsSet, error) {
	set := kadm.TopicsSet{}
	if len(groups) == 0 {
		return set, nil
	}
	meta, err := a.adm.Metadata(ctx, offsetsTopic)
	if err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	t := meta.Topics[offsetsTopic]
	if t.Err != nil || len(t.Partitions) == 0 {
		if errors.Is(t.Err, kerr.UnknownTopicOrPartition) {
			return set, nil
		}
		return nil, t.Err
	}
	for _, group := range groups {
		set.Add(offsetsTopic, offsetsPartition(group, len(t.Partitions)))
	}
	return set, nil
}

// offsetsPartition returns which of n partitions holds the offsets of a group, by
// Java's hash of the name.
func offsetsPartition(group string, n int) int32 {
	var hash int32
	for _, unit := range utf16.Encode([]rune(group)) {
		hash = 31*hash + int32(unit)
	}
	if hash == math.MinInt32 {
		return 0
	}
	return max(hash, -hash) % int32(n)
}

// openIn returns the open transactions in some partitions.
func (a *Admin) openIn(ctx context.Context, set kadm.TopicsSet) ([]OpenTransaction, error) {
	if len(set) == 0 {
		return nil, nil
	}
	described, err := a.adm.DescribeProducers(ctx, set)
	if err != nil {
		return nil, fmt.Errorf("kafka: describe producers: %w", err)
	}
	var list []OpenTransaction
	for _, p := range described.SortedPartitions() {
		if p.Err != nil {
			return nil, fmt.Errorf("kafka: describe producers of %s/%d: %w", p.Topic, p.Partition, p.Err)
		}
		for _, producer := range p.ActiveProducers.Sorted() {
			if producer.CurrentTxnStartOffset < 0 {
				continue
			}
			list = append(list, OpenTransaction{
				Topic: p.Topic, Partition: p.Partition, Start: producer.CurrentTxnStartOffset, ProducerID: producer.ProducerID,
				// A producer that has not ended a transaction yet has no coordinator
				// epoch; 0 is not above any.
				Epoch: producer.ProducerEpoch, Last: time.UnixMilli(producer.LastTimestamp), coordinatorEpoch: max(producer.CoordinatorEpoch, 0),
			})
		}
	}
	return list, nil
}

// abortCommand returns the command that ends a hanging transaction.
func (o *OpenTransaction) abortCommand(reach string) string {
	return fmt.Sprintf("semel kafka txn abort --topic %s --partition %d --offset %d %s", o.Topic, o.Partition, o.Start, reach)
}

// reachFlags returns the flags with which the program reaches a client's brokers.
func reachFlags(client *kgo.Client) string {
	seeds, _ := client.OptValue(kgo.SeedBrokers).([]string)
	mechanisms, _ := client.OptValue(kgo.SASL).([]sasl.Mechanism)
	encrypted, _ := client.OptValue(kgo.DialTLSConfig).(*tls.Config)
	if len(seeds) == 0 || len(mechanisms) > 0 || encrypted != nil {
		return "--config FILE"
	}
	return "--brokers " + strings.Join(seeds, ",")
}

// Abort ends the transaction of a transactional id and fences its producer. A program
// that still runs under the id cannot commit any longer. ErrNoTransaction says that no
// transaction was open.
func (a *Admin) Abort(ctx context.Context, id string) error {
	list, err := a.Transactions(ctx, id)
	if err != nil {
		return err
	}
	if !list[0].UnderWay() {
		return fmt.Errorf("%s is %s: %w", id, list[0].State, ErrNoTransaction)
	}
	c, err := kgo.NewClient(append(slices.Clone(a.opts), kgo.TransactionalID(id))...)
	if err != nil {
		return fmt.Errorf("kafka: %w", err)
	}
	defer c.Close()
	// A new producer of the id aborts the transaction of the previous one.
	if _, _, err := c.ProducerID(ctx); err != nil {
		return fmt.Errorf("kafka: abort %s: %w", id, err)
	}
	return nil
}

// AbortHanging ends a transaction that no coordinator knows, in one partition, by its
// start offset. A transaction that will end by itself is refused.
func (a *Admin) AbortHanging(ctx context.Context, topic string, partition int32, start int64) error {
	list, err := a.Open(ctx, Places{Topics: []string{topic}})
	if err != nil {
		return err
	}
	at := slices.IndexFunc(list, func(o OpenTransaction) bool { return o.Partition == partition && o.Start == start })
	if at < 0 {
		return fmt.Errorf("%s/%d, offset %d: %w", topic, partition, start, ErrNoTransaction)
	}
	o := &list[at]
	if !o.Hanging {
		return fmt.Errorf("%s/%d, offset %d: it is under way as %s, which will end it: %w", topic, partition, start, o.ID, semel.ErrInvalidRequest)
	}
	set := kadm.TopicsSet{}
	set.Add(topic, partition)
	answers, err := a.adm.WriteTxnMarkers(ctx, kadm.TxnMarkers{
		ProducerID: o.ProducerID, ProducerEpoch: o.Epoch, CoordinatorEpoch: o.coordinatorEpoch, Topics: set,
	})
	if err != nil {
		return fmt.Errorf("kafka: abort: %w", err)
	}
	for _, producer := range answers {
		for _, t := range producer.Topics {
			for _, p := range t.Partitions {
				if p.Err != nil {
					return fmt.Errorf("kafka: abort in %s/%d: %w", t.Topic, p.Partition, p.Err)
				}
			}
		}
	}
	return nil
}
