package config

import (
	"path/filepath"
	"strconv"
	"strings"
)

func sourceMapping(target *Source) mapping {
	m := kindsOf(
		kindField("file", target, fileSource, "Lines of files."),
		kindField("http", target, httpSource, "Bodies of requests, each answered when its fate is durable."),
		kindField("kafka", target, kafkaSource, "Records of topics, read as a member of a group, always `read_committed`."),
	)
	m.planned = []string{"rabbitmq", "sqs", "nats", "postgres"}
	return m
}

func fileSource() (Source, mapping) {
	s := &FileSource{}
	return s, mapping{fields: []field{
		listField("paths", form{scalar: aPath}, func(v value) {
			v.list(func(element value) {
				var path string
				element.filePath(&path)
				if _, err := filepath.Match(path, "x"); err != nil {
					element.wrong("it is no pattern: a [ has no ]")
				} else if path != "" {
					s.Paths = append(s.Paths, path)
				}
			})
		}, "Names of files, with `*`, `?` and `[…]` as in a shell.").need(),
		truthField("follow", &s.Follow, "Go on with what is added, over rotation. Without it the pipeline ends at the end of the files.").or("false"),
		choiceField("format", &s.Format, "`jsonl` skips blank lines, `text` takes them for messages.", "jsonl", "text").or("jsonl"),
		choiceField("from", &s.From, "Where a file that is met first is read from.", "beginning", "end").or("beginning"),
		pathField("state", &s.State, "Directory in which positions are kept, for each pipeline its own.").or("semel-state"),
		sizeField("max_line", &s.MaxLine, "Longest line.").or("16MiB"),
	}}
}

func httpSource() (Source, mapping) {
	s := &HTTPSource{}
	return s, mapping{fields: []field{
		{name: "listen", doc: "Address to listen on.", form: form{scalar: aText}, required: true, read: func(v value) {
			v.text(&s.Listen)
			v.checkListen(s.Listen)
		}},
		{name: "path", doc: "Path that takes messages; others are not found.", form: form{scalar: aText}, initial: "/", read: func(v value) {
			if v.text(&s.Path); s.Path != "" && !strings.HasPrefix(s.Path, "/") {
				v.wrong("it must begin with /")
			}
		}},
		sizeField("max_body", &s.MaxBody, "Longest body.").or("1MiB"),
		secretField("token", &s.Token, "Bearer token that requests must show.").means("none"),
		durationField("wait", &s.Wait, "How long a request waits for its message's fate. After that it is answered with 503 and may come again.").or("30s"),
		serverTLSField(&s.TLS),
	}}
}

func kafkaSource() (Source, mapping) {
	s := &KafkaSource{}
	return s, mapping{
		fields: append(kafkaFields(&s.KafkaClient),
			textsField("topics", &s.Topics, "Topics to read.").need(),
			textField("group", &s.Group, "Name of the group, whose offsets say what is settled.").need(),
			textField("instance", &s.Instance, "Name of this member in the group, other for each process: a restart then takes no rebalance. Where the name of the host is another after a restart, as in most containers, write one that stays, such as ${env:POD_NAME} of a stateful set: without it a restart waits for the session of the one before.").means("the names of the pipeline and of the host and a number, with dots between them"),
			durationField("session_timeout", &s.SessionTimeout, "After how long without a sign a member is taken for dead.").means("10s"),
			choiceField("start", &s.Start, "Where a group without offsets begins.", "earliest", "latest").or("earliest"),
			choiceField("protocol", &s.Protocol, "How the group divides partitions: by its members, or by the broker (KIP-848, Kafka 4.0), which then also says when a member is dead: after a crash the next run with its name waits as long.", "classic", "consumer").or("classic"),
			partField("repartition", func() mapping {
				s.Repartition = &Repartition{}
				return mapping{fields: []field{
					textField("topic", &s.Repartition.Topic, "Topic between the stages, of this pipeline alone. It is made if it is missing, and what was decided is deleted from it.").means("the group with `-repartition` behind it"),
					numberField("partitions", &s.Repartition.Partitions, 1, 100_000, "How many partitions it has. It cannot be changed while keys are remembered.").means("what is there; if it is made, as many as the topic with the most"),
				}}
			}, "In a transaction from Kafka to Kafka: copy the records to a topic in which all copies of a key are in one partition, and decide them there. Needed where the key is not the record key, or producers partition differently. `{}` is enough.").means("off").titled("Repartition stage"),
			countField("max_poll", &s.MaxPoll, "Messages that one read returns at most. In a transaction of Kafka `transaction.max_records` bounds them.").means("2000"),
			windowField("retention", &s.Retention, "How long the topics keep a record. Nothing is done with it but to compare it with the window."),
		),
	}
}

// kafkaFields are how Kafka is reached.
func kafkaFields(c *KafkaClient) []field {
	return []field{
		addressesField("brokers", &c.Brokers, "Addresses of some brokers, `host:port`.").need(),
		tlsField(&c.TLS),
		partField("sasl", func() mapping {
			c.SASL = &SASL{}
			return mapping{fields: []field{
				choiceField("mechanism", &c.SASL.Mechanism, "How.", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512").need(),
				textField("username", &c.SASL.Username, "User name.").need(),
				secretField("password", &c.SASL.Password, "Password.").need(),
			}}
		}, "Prove to the brokers who this is.").means("off").titled("SASL"),
	}
}

func isPort(text string) bool {
	_, err := strconv.ParseUint(text, 10, 16)
	return err == nil
}
