package config

import (
	"path/filepath"
	"strings"

	"github.com/semel-dev/semel/internal/schema"
)

func sourceMapping(target *Source) schema.Mapping {
	return schema.KindsOf(
		schema.KindField("file", target, fileSource, "Lines of files."),
		schema.KindField("http", target, httpSource, "Bodies of requests, each answered when its fate is durable."),
		schema.KindField("kafka", target, kafkaSource, "Records of topics, read as a member of a group, always `read_committed`."),
	)
}

func fileSource() (Source, schema.Mapping) {
	s := &FileSource{}
	return s, schema.Mapping{Fields: []schema.Field{
		schema.ListField("paths", schema.Form{Scalar: schema.ScalarPath}, func(v schema.Value) {
			v.List(func(element schema.Value) {
				var path string
				element.FilePath(&path)
				if _, err := filepath.Match(path, "x"); err != nil {
					element.Wrong("it is no pattern: a [ has no ]")
				} else if path != "" {
					s.Paths = append(s.Paths, path)
				}
			})
		}, "Names of files, with `*`, `?` and `[…]` as in a shell.").Need(),
		schema.TruthField("follow", &s.Follow, "Go on with what is added, over rotation. Without it the pipeline ends at the end of the files.").Or("false"),
		schema.ChoiceField("format", &s.Format, "`jsonl` skips blank lines, `text` takes them for messages.", "jsonl", "text").Or("jsonl"),
		schema.ChoiceField("from", &s.From, "Where a file that is met first is read from.", "beginning", "end").Or("beginning"),
		schema.PathField("state", &s.State, "Directory in which positions are kept, for each pipeline its own.").Or("semel-state"),
		schema.SizeField("max_line", &s.MaxLine, "Longest line.").Or("16MiB"),
	}}
}

func httpSource() (Source, schema.Mapping) {
	s := &HTTPSource{}
	return s, schema.Mapping{Fields: []schema.Field{
		{Name: "listen", Doc: "Address to listen on.", Form: schema.Form{Scalar: schema.ScalarText}, Required: true, Read: func(v schema.Value) {
			v.Text(&s.Listen)
			v.CheckListen(s.Listen)
		}},
		{Name: "path", Doc: "Path that takes messages; others are not found.", Form: schema.Form{Scalar: schema.ScalarText}, Initial: "/", Read: func(v schema.Value) {
			if v.Text(&s.Path); s.Path != "" && !strings.HasPrefix(s.Path, "/") {
				v.Wrong("it must begin with /")
			}
		}},
		schema.SizeField("max_body", &s.MaxBody, "Longest body.").Or("1MiB"),
		schema.SecretField("token", &s.Token, "Bearer token that requests must show.").Means("none"),
		schema.DurationField("wait", &s.Wait, "How long a request waits for its message's fate. After that it is answered with 503 and may come again.").Or("30s"),
		serverTLSField(&s.TLS),
	}}
}

func kafkaSource() (Source, schema.Mapping) {
	s := &KafkaSource{}
	return s, schema.Mapping{
		Fields: append(kafkaFields(&s.KafkaClient),
			schema.TextsField("topics", &s.Topics, "Topics to read.").Need(),
			schema.TextField("group", &s.Group, "Name of the group, whose offsets say what is settled.").Need(),
			schema.TextField("instance", &s.Instance, "Name of this member in the group, other for each process: a restart then takes no rebalance. Where the name of the host is another after a restart, as in most containers, write one that stays, such as ${env:POD_NAME} of a stateful set: without it a restart waits for the session of the one before.").Means("the names of the pipeline and of the host and a number, with dots between them"),
			schema.DurationField("session_timeout", &s.SessionTimeout, "After how long without a sign a member is taken for dead.").Means("10s"),
			schema.ChoiceField("start", &s.Start, "Where a group without offsets begins.", "earliest", "latest").Or("earliest"),
			schema.ChoiceField("protocol", &s.Protocol, "How the group divides partitions: by its members, or by the broker (KIP-848, Kafka 4.0), which then also says when a member is dead: after a crash the next run with its name waits as long.", "classic", "consumer").Or("classic"),
			schema.PartField("repartition", func() schema.Mapping {
				s.Repartition = &Repartition{}
				return schema.Mapping{Fields: []schema.Field{
					schema.TextField("topic", &s.Repartition.Topic, "Topic between the stages, of this pipeline alone. It is made if it is missing, and what was decided is deleted from it.").Means("the group with `-repartition` behind it"),
					schema.NumberField("partitions", &s.Repartition.Partitions, 1, 100_000, "How many partitions it has. It cannot be changed while keys are remembered.").Means("what is there; if it is made, as many as the topic with the most"),
				}}
			}, "In a transaction from Kafka to Kafka: copy the records to a topic in which all copies of a key are in one partition, and decide them there. Needed where the key is not the record key, or producers partition differently. `{}` is enough.").Means("off").Titled("Repartition stage"),
			schema.CountField("max_poll", &s.MaxPoll, "Messages that one read returns at most. In a transaction of Kafka `transaction.max_records` bounds them.").Means("2000"),
			schema.WindowField("retention", &s.Retention, "How long the topics keep a record. Nothing is done with it but to compare it with the window."),
		),
	}
}

// kafkaFields are how Kafka is reached.
func kafkaFields(c *KafkaClient) []schema.Field {
	return []schema.Field{
		schema.AddressesField("brokers", &c.Brokers, "Addresses of some brokers, `host:port`.").Need(),
		tlsField(&c.TLS),
		schema.PartField("sasl", func() schema.Mapping {
			c.SASL = &SASL{}
			return schema.Mapping{Fields: []schema.Field{
				schema.ChoiceField("mechanism", &c.SASL.Mechanism, "How.", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512").Need(),
				schema.TextField("username", &c.SASL.Username, "User name.").Need(),
				schema.SecretField("password", &c.SASL.Password, "Password.").Need(),
			}}
		}, "Prove to the brokers who this is.").Means("off").Titled("SASL"),
	}
}
