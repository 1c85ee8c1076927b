package kafka

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// acl is a command of the page about rights.
type acl struct {
	resource, name string
	prefixed       bool
	operation      string
}

func (a acl) String() string { return a.operation + " on " + a.resource + " " + a.name }

// readACLs returns the commands of some sections of the page.
func readACLs(t *testing.T, sections ...string) (list []acl) {
	t.Helper()
	page, err := os.ReadFile("../../docs/guides/kafka-rights.md")
	must(t, err)
	found := map[string]bool{}
	for _, section := range strings.Split(string(page), "\n## ")[1:] {
		title, text, _ := strings.Cut(section, "\n")
		if !slices.Contains(sections, title) {
			continue
		}
		found[title] = true
		for line := range strings.SplitSeq(text, "\n") {
			if args, ok := strings.CutPrefix(line, "kafka-acls.sh "); ok {
				list = append(list, parseACL(t, strings.Fields(args))...)
			}
		}
	}
	if len(found) != len(sections) {
		t.Fatalf("the page has the sections %v of %v", found, sections)
	}
	return list
}

// parseACL reads the arguments of kafka-acls.sh. An unknown one fails the test.
func parseACL(t *testing.T, args []string) (list []acl) {
	t.Helper()
	set := flag.NewFlagSet("kafka-acls.sh", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	var operations []string
	names := map[string]*string{}
	for _, resource := range []string{"topic", "group", "transactional-id"} {
		names[resource] = set.String(resource, "", "")
	}
	add, _, principal := set.Bool("add", false, ""), set.String("bootstrap-server", "", ""), set.String("allow-principal", "", "")
	pattern := set.String("resource-pattern-type", "literal", "")
	set.Func("operation", "", func(op string) error { operations = append(operations, op); return nil })
	if err := set.Parse(args); err != nil || !*add || *principal != "User:semel" || len(operations) == 0 || set.NArg() > 0 {
		t.Fatalf("kafka-acls.sh does not take %v: %v", args, err)
	}
	for resource, name := range names {
		for _, op := range operations {
			if *name != "" {
				list = append(list, acl{resource, strings.Trim(*name, "'"), *pattern == "prefixed", op})
			}
		}
	}
	return list
}

func (a acl) builder() *kadm.ACLBuilder {
	op, err := kmsg.ParseACLOperation(strings.ToUpper(a.operation))
	if a.operation == "DescribeConfigs" {
		op, err = kadm.OpDescribeConfigs, nil
	}
	if err != nil {
		panic(err)
	}
	b := kadm.NewACLs().Allow("User:semel").AllowHosts("*").Operations(op)
	if a.prefixed {
		b.ResourcePatternType(kadm.ACLPatternPrefixed)
	} else {
		b.ResourcePatternType(kadm.ACLPatternLiteral)
	}
	switch a.resource {
	case "topic":
		return b.Topics(a.name)
	case "group":
		return b.Groups(a.name)
	}
	return b.TransactionalIDs(a.name)
}

// TestTheRightsOfThePageAreThoseThatAreNeeded runs pipelines as a user who has the rights that the
// page prints. Of each right, doctor says that it is missing, and its purpose.
func TestTheRightsOfThePageAreThoseThatAreNeeded(t *testing.T) {
	t.Parallel()
	program := built(t)
	server := servicestest.StartKafka(t, &services.KafkaOptions{Login: true})
	for _, c := range []struct {
		name, config string
		sections     []string
	}{
		{"store", `
stores:
  keys: { embedded: { path: %[3]s/keys } }
pipelines:
  clicks:
    source: { kafka: { brokers: [%[1]q], topics: [clicks], group: clicks-once, %[2]s } }
    key: { id: .id }
    window: 1h
    store: keys
    sink: { kafka: { brokers: [%[1]q], topic: clicks-clean, %[2]s } }
    parked: { topic: clicks-parked }
`, []string{"Read a topic", "Write a topic", "Park messages in a topic"}},
		{"transaction", `
pipelines:
  clicks:
    source: { kafka: { brokers: [%[1]q], topics: [clicks], group: clicks-once, %[2]s } }
    key: { id: .id }
    window: 1h
    sink: { kafka: { brokers: [%[1]q], topic: clicks-clean, %[2]s } }
    transaction: { time: event, state: %[3]s/state }
    tables: { customers: { topic: customers, by: .customer } }
    map: '{"id": value.id, "name": tables.customers.name}'
    parked: { topic: clicks-parked }
`, []string{"Read a topic", "Write a topic", "Park messages in a topic", "Read, decide and write in one Kafka transaction", "Delete what is no longer needed", "Join rows of a table"}},
		{"windows of two stages", `
pipelines:
  clicks:
    source: { kafka: { brokers: [%[1]q], topics: [clicks], group: clicks-once, repartition: true, %[2]s } }
    key: { id: .id }
    window: 1h
    sink: { kafka: { brokers: [%[1]q], topic: clicks-clean, %[2]s } }
    transaction: { time: event, state: %[3]s/state }
    aggregate: { by: .customer, over: { tumbling: 1s }, grace: 1s, idle: 1s, values: { n: count } }
    parked: { topic: clicks-parked }
`, []string{"Read a topic", "Write a topic", "Park messages in a topic", "Read, decide and write in one Kafka transaction", "Delete what is no longer needed", "Copy records to other partitions"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			client, err := kgo.NewClient(kgo.SeedBrokers(server.Addr()), kgo.UnknownTopicRetries(-1))
			must(t, err)
			defer client.Close()
			adm := kadm.NewClient(client)
			defer clean(t, adm)
			for _, topic := range []string{"clicks", "clicks-clean", "customers", "clicks-parked"} {
				if c.name != "store" && topic == "clicks-parked" {
					continue // it is created
				}
				settings := map[string]*string{}
				if topic == "customers" {
					settings["cleanup.policy"] = kadm.StringPtr("compact")
				}
				_, err := adm.CreateTopic(t.Context(), 2, 1, settings, topic)
				must(t, err)
			}
			must(t, client.ProduceSync(t.Context(), &kgo.Record{Topic: "customers", Key: []byte("ann"), Value: []byte(`{"name":"Ann"}`)}).FirstErr())
			rights := readACLs(t, c.sections...)
			for _, right := range rights {
				_, err := adm.CreateACLs(t.Context(), right.builder())
				must(t, err)
			}
			login := "sasl: { mechanism: PLAIN, username: semel, password: semel }"
			d := newDaemon(t, program, fmt.Sprintf(c.config, services.KafkaLogin(server), login, t.TempDir()))
			d.start(t)
			for i := range 10 {
				must(t, client.ProduceSync(t.Context(), &kgo.Record{Topic: "clicks", Value: fmt.Appendf(nil, `{"id":%d,"customer":"ann"}`, i)},
					&kgo.Record{Topic: "clicks", Value: []byte("no JSON")}).FirstErr())
			}
			for topic, n := range map[string]int64{"clicks-clean": 1, "clicks-parked": 1} {
				if !within(time.Minute, func() bool { return written(t, adm, topic) >= n }) {
					t.Fatalf("nothing is in %s", topic)
				}
			}
			d.end(t, syscall.SIGTERM)
			if out := examine(t, d); strings.Contains(out, "lacks the right") && !strings.Contains(out, "DescribeConfigs") || !strings.Contains(out, "all that the pipeline uses") {
				t.Errorf("with all rights doctor says\n%s", out)
			}
			for _, right := range rights {
				if right.operation == "Create" { // the topics exist
					continue
				}
				lacks(t, adm, d, right)
			}
			clean(t, adm)
			for _, right := range rights {
				if right.operation == "Create" && c.name != "store" {
					lacks(t, adm, d, right)
				}
			}
			_, err = adm.DeleteACLs(t.Context(), kadm.NewACLs().Allow("User:semel").AllowHosts("*").Operations(kadm.OpAny).ResourcePatternType(kadm.ACLPatternAny).Topics().Groups().TransactionalIDs())
			must(t, err)
		})
	}
}

// written returns how many offsets a topic has.
func written(t *testing.T, adm *kadm.Client, topic string) (n int64) {
	t.Helper()
	ends, err := adm.ListEndOffsets(t.Context(), topic)
	must(t, err)
	ends.Each(func(o kadm.ListedOffset) { n += max(o.Offset, 0) })
	return n
}

// clean deletes all topics and groups.
func clean(t *testing.T, adm *kadm.Client) {
	t.Helper()
	if !within(time.Minute, func() bool {
		topics, err := adm.ListTopics(t.Context())
		must(t, err)
		_, err = adm.DeleteTopics(t.Context(), topics.Names()...)
		must(t, err)
		groups, err := adm.ListGroups(t.Context())
		must(t, err)
		answers, err := adm.DeleteGroups(t.Context(), groups.Groups()...)
		return err == nil && answers.Error() == nil && len(topics) == 0
	}) {
		t.Fatal("the topics and groups stay")
	}
}

// lacks takes a right away and gives it back. Meanwhile doctor must miss it.
func lacks(t *testing.T, adm *kadm.Client, d *daemon, right acl) {
	t.Helper()
	_, err := adm.DeleteACLs(t.Context(), right.builder())
	must(t, err)
	defer func() {
		_, err := adm.CreateACLs(t.Context(), right.builder())
		must(t, err)
	}()
	command := fmt.Sprintf("--operation %s --%s %s", right.operation, right.resource, right.name)
	out := ""
	if !within(time.Minute, func() bool { // a broker learns of rights a little later
		out = examine(t, d)
		return strings.Contains(out, "lacks the right "+right.operation) && strings.Contains(out, command)
	}) {
		t.Errorf("without %s doctor does not name it and %q:\n%s", right, command, out)
	}
}

// examine returns what doctor says.
func examine(t *testing.T, d *daemon) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, d.program, "doctor", d.config)
	cmd.Env = append(os.Environ(), d.env...)
	out, _ := cmd.CombinedOutput()
	return string(out)
}
