package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel/broker/kafkaio"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/kind/kafka"
)

// kafkaFlags select a Kafka cluster and topics.
type kafkaFlags struct {
	*app
	file, pipeline string
	brokers        []string
	topics         []string

	conf *config.File
	spec *config.Pipeline
}

func newKafkaCommand(a *app) *cobra.Command {
	cmd := newGroup(a, &cobra.Command{
		Use:   "kafka VERB",
		Short: "Look at the transactions of Kafka, and end those that hang",
		Example: `semel kafka txn ls --config kafka.yaml
semel kafka txn abort orders-once/orders.web-1.1-0 --brokers 127.0.0.1:9092`,
	})
	cmd.AddCommand(newTxnCommand(a))
	return cmd
}

func newTxnCommand(a *app) *cobra.Command {
	f := &kafkaFlags{app: a}
	cmd := newGroup(a, &cobra.Command{
		Use:   "txn VERB",
		Short: "Look at transactions, and end those that hang",
		Example: `semel kafka txn ls --config kafka.yaml
semel kafka txn ls --brokers 127.0.0.1:9092 --topic orders
semel kafka txn describe orders-once/orders.web-1.1-0 --brokers 127.0.0.1:9092`,
		Long: `Looks at the transactions of Kafka, and ends those that hang.

Readers with read_committed do not get past an open transaction. The brokers abort
one whose producer is gone when its timeout is over; one that hangs, which no
coordinator knows of any more, nobody ends.`,
	})
	flags := cmd.PersistentFlags()
	flags.StringVar(&f.file, "config", "", "configuration `FILE` whose Kafka it is")
	flags.StringVar(&f.pipeline, "pipeline", "", "the Kafka of the pipeline of this `NAME` (default the one that has Kafka)")
	flags.StringSliceVar(&f.brokers, "brokers", nil, "`HOST:PORT` of some brokers, instead of --config")
	completeValues(cmd, "pipeline")
	completeValues(cmd, "brokers")
	cmd.AddCommand(newTxnListCommand(f), newTxnDescribeCommand(f), newTxnAbortCommand(f))
	return cmd
}

// check validates the flags.
func (f *kafkaFlags) check(p *problems) {
	switch {
	case f.file == "" && len(f.brokers) == 0:
		p.addf("which Kafka? Say --config FILE or --brokers HOST:PORT")
	case f.file != "" && len(f.brokers) > 0:
		p.addf("--config and --brokers exclude each other: leave one out")
	case f.file == "" && f.pipeline != "":
		p.addf("--pipeline is for --config: leave it out")
	}
	for _, broker := range f.brokers {
		if _, _, err := net.SplitHostPort(broker); err != nil {
			p.addf("--brokers %s: write HOST:PORT", broker)
		}
	}
	if f.file == "" {
		return
	}
	if f.conf = f.readConfig(f.file, p); f.conf == nil {
		return
	}
	var names []string
	if f.pipeline != "" {
		names = []string{f.pipeline}
	}
	for _, spec := range choosePipelines(f.conf, names, p) {
		switch {
		case !kafka.Uses(spec):
		case f.spec != nil:
			p.addf("several pipelines have Kafka: say which with --pipeline")
			return
		default:
			f.spec = spec
		}
	}
	if f.spec == nil && p.err() == nil {
		p.addf("%s: no pipeline that reads from Kafka or writes to it", f.file)
	}
}

// with connects and calls use.
func (f *kafkaFlags) with(ctx context.Context, use func(ctx context.Context, a *kafkaio.Admin, in kafkaio.Places) error) (err error) {
	patient, cancel := context.WithTimeout(ctx, f.patience)
	defer cancel()
	var admin *kafkaio.Admin
	var in kafkaio.Places
	if f.spec != nil {
		admin, in, err = kafka.OpenAdmin(patient, f.conf, f.spec)
	} else {
		admin, err = kafka.OpenBrokers(patient, f.brokers)
	}
	if err != nil {
		return inOneLine(err)
	}
	defer func() { err = errors.Join(err, admin.Close()) }()
	in.Topics = append(in.Topics, f.topics...)
	if err := use(patient, admin, in); err != nil {
		return inOneLine(err)
	}
	return nil
}

// txnLine is a transaction in JSON.
type txnLine struct {
	ID          string   `json:"id,omitempty"`
	State       string   `json:"state"`
	Coordinator *int32   `json:"coordinator,omitempty"`
	Producer    int64    `json:"producer"`
	Epoch       int16    `json:"epoch"`
	Timeout     string   `json:"timeout,omitempty"`
	Started     string   `json:"started,omitempty"`
	Partitions  []string `json:"partitions,omitempty"`
	Topic       string   `json:"topic,omitempty"`
	Partition   *int32   `json:"partition,omitempty"`
	Offset      *int64   `json:"offset,omitempty"`
	Last        string   `json:"last,omitempty"`
}

func newTxnListCommand(f *kafkaFlags) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List open transactions",
		Example: `semel kafka txn ls --config kafka.yaml
semel kafka txn ls --brokers 127.0.0.1:9092 --topic orders --all --json`,
		Long: `Lists the transactions that are under way, and those that are open in the
partitions of topics though nobody has them under way: they hang. Topics are those
of the pipeline and of --topic. Of __consumer_offsets, ls looks into the partitions
that hold the offsets of the pipeline's groups. The exit status is 3 if one hangs.`,
		Args: noArguments,
		RunE: f.checked(func(cmd *cobra.Command, _ []string, wrong problems) error {
			f.check(&wrong)
			if err := wrong.err(); err != nil {
				return err
			}
			hanging := 0
			err := f.with(cmd.Context(), func(ctx context.Context, a *kafkaio.Admin, in kafkaio.Places) error {
				list, err := a.Transactions(ctx)
				if err != nil {
					return err
				}
				for i := range list {
					if all || list[i].UnderWay() {
						if err := f.printTransaction(&list[i]); err != nil {
							return err
						}
					}
				}
				open, err := a.Open(ctx, in)
				if errors.Is(err, kafkaio.ErrOffsetsHidden) {
					f.note("%s", err)
					err = nil
				}
				for i := range open {
					if o := &open[i]; o.Hanging {
						hanging++
						if err := f.printHanging(o); err != nil {
							return err
						}
					}
				}
				return err
			})
			if err == nil && hanging > 0 {
				err = errFound
			}
			return err
		}),
	}
	cmd.Flags().BoolVar(&all, "all", false, "also ids that have none open")
	cmd.Flags().StringArrayVar(&f.topics, "topic", nil, "also look into the partitions of the topic of this `NAME`")
	completeValues(cmd, "topic")
	return cmd
}

func (f *kafkaFlags) printTransaction(t *kafkaio.Transaction) error {
	if f.asJSON {
		line := txnLine{ID: t.ID, State: t.State, Coordinator: &t.Coordinator, Producer: t.ProducerID, Epoch: t.Epoch, Timeout: t.Timeout.String(), Partitions: t.Partitions}
		if !t.Started.IsZero() {
			line.Started = t.Started.UTC().Format(time.RFC3339Nano)
		}
		return f.printJSON(line)
	}
	text := fmt.Sprintf("%s  %s", displayText(t.ID), t.State)
	if !t.Started.IsZero() {
		text += fmt.Sprintf(", for %s of %s", formatElapsed(time.Since(t.Started)), formatElapsed(t.Timeout))
	}
	text += fmt.Sprintf(", producer %d epoch %d", t.ProducerID, t.Epoch)
	if len(t.Partitions) > 0 {
		text += ": " + strings.Join(t.Partitions, " ")
	}
	_, err := fmt.Fprintln(f.stdout, text)
	return err
}

func (f *kafkaFlags) printHanging(o *kafkaio.OpenTransaction) error {
	if f.asJSON {
		return f.printJSON(txnLine{State: "Hanging", ID: o.ID, Producer: o.ProducerID, Epoch: o.Epoch, Topic: o.Topic, Partition: &o.Partition, Offset: &o.Start, Last: o.Last.UTC().Format(time.RFC3339Nano)})
	}
	_, err := fmt.Fprintf(f.stdout, "%s/%d  hangs since offset %d, last written %s ago, producer %d epoch %d\n",
		displayText(o.Topic), o.Partition, o.Start, formatElapsed(time.Since(o.Last)), o.ProducerID, o.Epoch)
	return err
}

func newTxnDescribeCommand(f *kafkaFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "describe ID...",
		Short: "Show the transactions of transactional ids",
		Example: `semel kafka txn describe orders-once/orders.web-1.1-0 --brokers 127.0.0.1:9092
semel kafka txn describe orders-once/orders.web-1.1-0 --config kafka.yaml --json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("ID is missing: name a transactional id")
			}
			return nil
		},
		RunE: f.checked(func(cmd *cobra.Command, args []string, wrong problems) error {
			f.check(&wrong)
			if err := wrong.err(); err != nil {
				return err
			}
			return f.with(cmd.Context(), func(ctx context.Context, a *kafkaio.Admin, _ kafkaio.Places) error {
				list, err := a.Transactions(ctx, args...)
				for i := range list {
					if err := f.printTransaction(&list[i]); err != nil {
						return err
					}
				}
				return err
			})
		}),
	}
}

func newTxnAbortCommand(f *kafkaFlags) *cobra.Command {
	var topic string
	var partition int32
	var offset int64
	cmd := &cobra.Command{
		Use:   "abort [ID]",
		Short: "Abort a transaction",
		Example: `semel kafka txn abort orders-once/orders.web-1.1-0 --brokers 127.0.0.1:9092
semel kafka txn abort orders-once/orders.web-1.1-0 --config kafka.yaml`,
		Long: `Aborts the transaction of a transactional id. Its producer is fenced: a program
that still runs under the id has to begin anew.

One that hangs has no id any more: name topic, partition and the offset since which
it is open, as ls shows them. What somebody will end is not aborted in this way.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("unexpected argument %q: one transaction is aborted at a time", args[1])
			}
			return nil
		},
		RunE: f.checked(func(cmd *cobra.Command, args []string, wrong problems) error {
			place := cmd.Flags().Changed("topic") && cmd.Flags().Changed("partition") && cmd.Flags().Changed("offset")
			if place == (len(args) == 1) {
				wrong.addf("which transaction? Name its ID, or --topic, --partition and --offset of one that hangs")
			}
			f.check(&wrong)
			if err := wrong.err(); err != nil {
				return err
			}
			return f.with(cmd.Context(), func(ctx context.Context, a *kafkaio.Admin, _ kafkaio.Places) error {
				if place {
					if err := a.AbortHanging(ctx, topic, partition, offset); err != nil {
						return err
					}
					f.note("aborted in %s/%d", topic, partition)
					return nil
				}
				if err := a.Abort(ctx, args[0]); err != nil {
					return err
				}
				f.note("aborted, and its producer is fenced")
				return nil
			})
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&topic, "topic", "", "`NAME` of the topic in which one hangs")
	flags.Int32Var(&partition, "partition", 0, "`NUMBER` of the partition")
	flags.Int64Var(&offset, "offset", 0, "`OFFSET` since which it is open")
	completeValues(cmd, "topic")
	return cmd
}
