// Package kafkacmd has the verb kafka, which lists and aborts transactions of a cluster.
package kafkacmd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/broker/kafka"
	"github.com/semel-dev/semel/internal/cli/open"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
)

// kafkaFlags select a Kafka cluster and topics.
type kafkaFlags struct {
	*term.App
	file, pipeline string
	brokers        []string
	topics         []string

	conf *config.File
	spec *config.Pipeline
}

// New returns the verb kafka.
func New(a *term.App) *cobra.Command {
	cmd := term.Group(a, &cobra.Command{
		Use:   "kafka VERB",
		Short: "Show Kafka transactions, and abort hanging ones",
		Example: `semel kafka txn ls --config kafka.yaml
semel kafka txn abort orders-once/orders.web-1.1-0 --brokers 127.0.0.1:9092`,
	})
	cmd.AddCommand(newTxnCommand(a))
	return cmd
}

func newTxnCommand(a *term.App) *cobra.Command {
	f := &kafkaFlags{App: a}
	cmd := term.Group(a, &cobra.Command{
		Use:   "txn VERB",
		Short: "Show transactions, and abort hanging ones",
		Example: `semel kafka txn ls --config kafka.yaml
semel kafka txn ls --brokers 127.0.0.1:9092 --topic orders
semel kafka txn describe orders-once/orders.web-1.1-0 --brokers 127.0.0.1:9092`,
		Long: `Shows the transactions of a Kafka cluster, and aborts hanging ones.

Readers with read_committed wait at an open transaction. If its producer is gone,
the brokers abort it after its timeout. A transaction hangs if no coordinator knows
it any more. The brokers never end it.`,
	})
	flags := cmd.PersistentFlags()
	flags.StringVar(&f.file, "config", "", "configuration `FILE` that names the cluster")
	flags.StringVar(&f.pipeline, "pipeline", "", "use the cluster of the pipeline `NAME` (default the only one with Kafka)")
	flags.StringSliceVar(&f.brokers, "brokers", nil, "`HOST:PORT` of some brokers, instead of --config")
	open.CompleteNames(a, cmd, "pipeline", (*config.File).PipelineNames)
	term.CompleteValues(cmd, "brokers")
	cmd.AddCommand(newTxnListCommand(f), newTxnDescribeCommand(f), newTxnAbortCommand(f))
	return cmd
}

// check validates the flags.
func (f *kafkaFlags) check(p *term.Problems) {
	switch {
	case f.file == "" && len(f.brokers) == 0:
		p.Addf("no cluster is named: write --config FILE or --brokers HOST:PORT")
	case f.file != "" && len(f.brokers) > 0:
		p.Addf("--config and --brokers exclude each other: leave one out")
	case f.file == "" && f.pipeline != "":
		p.Addf("--pipeline is for --config: leave it out")
	}
	for _, broker := range f.brokers {
		if _, _, err := net.SplitHostPort(broker); err != nil {
			p.Addf("--brokers %s: write HOST:PORT", broker)
		}
	}
	if f.file == "" {
		return
	}
	var chosen []*config.Pipeline
	f.conf, chosen = open.Pipelines(f.App, f.file, []string{f.pipeline}, p)
	for _, spec := range chosen {
		switch {
		case adminOf(spec) == nil:
		case f.spec != nil:
			p.Addf("several pipelines use Kafka: name one with --pipeline")
			return
		default:
			f.spec = spec
		}
	}
	if f.spec == nil && p.Err() == nil {
		p.Addf("%s: no pipeline uses Kafka", f.file)
	}
}

// admins is a source or sink whose server is Kafka.
type admins interface {
	// OpenAdmin connects to the cluster of a pipeline. It also returns the topics that the
	// pipeline reads and writes, and its consumer groups.
	OpenAdmin(ctx context.Context, f *config.File, p *config.Pipeline) (*kafka.Admin, kafka.Places, error)
}

// adminOf returns the end of a pipeline that is Kafka, or nil.
func adminOf(p *config.Pipeline) admins {
	if sink, ok := p.Sink.(admins); ok {
		return sink
	}
	source, _ := p.Source.(admins) // nil if it is another kind
	return source
}

// with connects and calls use.
func (f *kafkaFlags) with(ctx context.Context, use func(ctx context.Context, a *kafka.Admin, in kafka.Places) error) (err error) {
	patient, cancel := context.WithTimeout(ctx, f.Patience)
	defer cancel()
	var admin *kafka.Admin
	var in kafka.Places
	if f.spec != nil {
		admin, in, err = adminOf(f.spec).OpenAdmin(patient, f.conf, f.spec)
	} else {
		admin, err = kafka.OpenAdmin(patient, []kgo.Opt{kgo.SeedBrokers(f.brokers...), kgo.ClientID("semel")})
	}
	if err != nil {
		return term.InOneLine(err)
	}
	defer func() { err = errors.Join(err, admin.Close()) }()
	in.Topics = append(in.Topics, f.topics...)
	return term.InOneLine(use(patient, admin, in))
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
		Long: `Lists the open transactions, and the hanging ones: they are open in a partition,
and no coordinator knows them. ls checks the topics of the pipeline and of --topic.
In __consumer_offsets, it checks the partitions with the offsets of the pipeline's
groups. The exit status is 3 if a transaction hangs.`,
		Args: term.NoArguments,
		RunE: f.Checked(func(cmd *cobra.Command, _ []string, wrong term.Problems) error {
			f.check(&wrong)
			if err := wrong.Err(); err != nil {
				return err
			}
			hanging := 0
			err := f.with(cmd.Context(), func(ctx context.Context, a *kafka.Admin, in kafka.Places) error {
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
				if errors.Is(err, kafka.ErrOffsetsHidden) {
					f.Note("%s", err)
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
				err = term.ErrFound
			}
			return err
		}),
	}
	cmd.Flags().BoolVar(&all, "all", false, "also ids without an open transaction")
	cmd.Flags().StringArrayVar(&f.topics, "topic", nil, "also check the topic `NAME`")
	term.CompleteValues(cmd, "topic")
	return cmd
}

func (f *kafkaFlags) printTransaction(t *kafka.Transaction) error {
	if f.JSON {
		return f.PrintJSON(txnLine{
			ID: t.ID, State: t.State, Coordinator: &t.Coordinator, Producer: t.ProducerID, Epoch: t.Epoch,
			Timeout: t.Timeout.String(), Started: term.JSONTime(t.Started), Partitions: t.Partitions,
		})
	}
	text := fmt.Sprintf("%s  %s", term.DisplayText(t.ID), t.State)
	if !t.Started.IsZero() {
		text += fmt.Sprintf(", for %s of %s", term.FormatElapsed(time.Since(t.Started)), term.FormatElapsed(t.Timeout))
	}
	text += fmt.Sprintf(", producer %d epoch %d", t.ProducerID, t.Epoch)
	if len(t.Partitions) > 0 {
		text += ": " + strings.Join(t.Partitions, " ")
	}
	_, err := fmt.Fprintln(f.Stdout, text)
	return err
}

func (f *kafkaFlags) printHanging(o *kafka.OpenTransaction) error {
	if f.JSON {
		return f.PrintJSON(txnLine{State: "Hanging", ID: o.ID, Producer: o.ProducerID, Epoch: o.Epoch, Topic: o.Topic, Partition: &o.Partition, Offset: &o.Start, Last: term.JSONTime(o.Last)})
	}
	_, err := fmt.Fprintf(f.Stdout, "%s/%d  hangs since offset %d, last written %s ago, producer %d epoch %d\n",
		term.DisplayText(o.Topic), o.Partition, o.Start, term.FormatElapsed(time.Since(o.Last)), o.ProducerID, o.Epoch)
	return err
}

func newTxnDescribeCommand(f *kafkaFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "describe ID...",
		Short: "Show the transactions of transactional ids",
		Example: `semel kafka txn describe orders-once/orders.web-1.1-0 --brokers 127.0.0.1:9092
semel kafka txn describe orders-once/orders.web-1.1-0 --config kafka.yaml --json`,
		Args: term.Arguments(1, -1, "ID is missing: name a transactional id", ""),
		RunE: f.Checked(func(cmd *cobra.Command, args []string, wrong term.Problems) error {
			f.check(&wrong)
			if err := wrong.Err(); err != nil {
				return err
			}
			return f.with(cmd.Context(), func(ctx context.Context, a *kafka.Admin, _ kafka.Places) error {
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
		Long: `Aborts the transaction of a transactional id and fences its producer. A program
that still runs under this id must restart.

A hanging transaction has no id: name its topic, partition and start offset, as
shown by ls. abort refuses a transaction that a coordinator will end.`,
		Args: term.Arguments(0, 1, "", "one ID at a time"),
		RunE: f.Checked(func(cmd *cobra.Command, args []string, wrong term.Problems) error {
			place := cmd.Flags().Changed("topic") && cmd.Flags().Changed("partition") && cmd.Flags().Changed("offset")
			if place == (len(args) == 1) {
				wrong.Addf("no transaction is named: write its ID, or --topic, --partition and --offset of a hanging one")
			}
			f.check(&wrong)
			if err := wrong.Err(); err != nil {
				return err
			}
			return f.with(cmd.Context(), func(ctx context.Context, a *kafka.Admin, _ kafka.Places) error {
				if place {
					if err := a.AbortHanging(ctx, topic, partition, offset); err != nil {
						return err
					}
					f.Note("aborted in %s/%d", topic, partition)
					return nil
				}
				if err := a.Abort(ctx, args[0]); err != nil {
					return err
				}
				f.Note("aborted, and its producer is fenced")
				return nil
			})
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&topic, "topic", "", "`NAME` of the topic with the hanging transaction")
	flags.Int32Var(&partition, "partition", 0, "`NUMBER` of the partition")
	flags.Int64Var(&offset, "offset", 0, "start `OFFSET` of the transaction")
	term.CompleteValues(cmd, "topic")
	return cmd
}
