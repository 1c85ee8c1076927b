package kafkaio

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
)

// ErrNoTransaction: there is no such transaction, or it has ended.
var ErrNoTransaction = errors.New("there is no such transaction")

// Admin looks at transactions and ends those that hang. All methods may be called
// at once and block until the brokers have answered.
type Admin struct {
	opts   []kgo.Opt
	client *kgo.Client
	adm    *kadm.Client
}

// OpenAdmin connects. It blocks until a broker has answered.
func OpenAdmin(ctx context.Context, client []kgo.Opt) (*Admin, error) {
	c, err := kgo.NewClient(client...)
	if err != nil {
		return nil, fmt.Errorf("kafkaio: %w: %w", semel.ErrInvalidRequest, err)
	}
	if err := reach(ctx, c); err != nil {
		c.Close()
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
	// State is the brokers' word: Empty, Ongoing, PrepareCommit, PrepareAbort,
	// CompleteCommit, CompleteAbort, Dead, PrepareEpochFence.
	State       string
	Coordinator int32
	ProducerID  int64
	Epoch       int16
	// Timeout is after how long the brokers abort it.
	Timeout time.Duration
	// Started is when it began; zero if none is open.
	Started time.Time
	// Partitions are those it wrote to, as topic/number.
	Partitions []string
}

func underWay(state string) bool { return state == "Ongoing" || strings.HasPrefix(state, "Prepare") }

// UnderWay reports whether it has not ended.
func (t *Transaction) UnderWay() bool { return underWay(t.State) }

// Transactions returns the transactional ids that the brokers know, sorted; with
// ids, those alone, and ErrNoTransaction for one that is not known.
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

// OpenTransaction is a transaction as a partition sees it: readers with
// read_committed do not get past Start.
type OpenTransaction struct {
	Topic      string
	Partition  int32
	Start      int64
	ProducerID int64
	Epoch      int16
	// ID is the transactional id, if a coordinator knows the producer.
	ID string
	// Last is when the producer wrote there last.
	Last time.Time
	// Hanging: no coordinator has it under way, so that nobody will end it.
	Hanging bool

	coordinatorEpoch int32
}

// Open returns the transactions that are open in the partitions of topics.
func (a *Admin) Open(ctx context.Context, topics ...string) ([]OpenTransaction, error) {
	list, err := a.open(ctx, topics)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	known, err := a.adm.ListTransactions(ctx, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("kafka: list transactions: %w", err)
	}
	// One that ended meanwhile is not known any more, and not open either.
	still, err := a.open(ctx, topics)
	if err != nil {
		return nil, err
	}
	list = slices.DeleteFunc(list, func(o OpenTransaction) bool {
		return !slices.ContainsFunc(still, func(s OpenTransaction) bool {
			return s.Topic == o.Topic && s.Partition == o.Partition && s.Start == o.Start && s.ProducerID == o.ProducerID
		})
	})
	for i := range list {
		o := &list[i]
		o.Hanging = true
		for _, t := range known {
			if t.ProducerID == o.ProducerID {
				o.ID = t.TxnID
				o.Hanging = o.Hanging && !underWay(t.State)
			}
		}
	}
	return list, nil
}

func (a *Admin) open(ctx context.Context, topics []string) ([]OpenTransaction, error) {
	set := kadm.TopicsSet{}
	for _, topic := range topics {
		set.Add(topic)
	}
	if len(set) > 0 {
		meta, err := a.adm.Metadata(ctx, topics...)
		if err != nil {
			return nil, fmt.Errorf("kafka: %w", err)
		}
		for _, topic := range topics {
			t := meta.Topics[topic]
			if t.Err != nil {
				delete(set, topic)
				continue
			}
			set.Add(topic, t.Partitions.Numbers()...)
		}
	}
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
				// A producer that ended none yet has no epoch of its coordinator;
				// 0 is not above any.
				Epoch: producer.ProducerEpoch, Last: time.UnixMilli(producer.LastTimestamp), coordinatorEpoch: max(producer.CoordinatorEpoch, 0),
			})
		}
	}
	return list, nil
}

// Abort ends the transaction of a transactional id, and fences its producer: a
// program that still runs under the id cannot commit any more. ErrNoTransaction
// says that none was open.
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
		return fmt.Errorf("kafkaio: %w", err)
	}
	defer c.Close()
	// A new producer of the id aborts what the one before left open.
	if _, _, err := c.ProducerID(ctx); err != nil {
		return fmt.Errorf("kafka: abort %s: %w", id, err)
	}
	return nil
}

// AbortHanging ends a transaction of which no coordinator knows, in one partition,
// by the offset at which it began. One that somebody will end is refused.
func (a *Admin) AbortHanging(ctx context.Context, topic string, partition int32, start int64) error {
	list, err := a.Open(ctx, topic)
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
