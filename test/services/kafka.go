package services

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// KafkaOptions are the options of [StartKafka].
type KafkaOptions struct {
	// HeapMiB is the heap size of each node in MiB. 96 is the least that costs
	// no speed. Defaults to 256.
	HeapMiB int
	// Properties are lines of server.properties by name. They override the
	// defaults of [StartKafka]. Defaults to none.
	Properties map[string]string
	// Java are further options of the Java program. Defaults to none.
	Java []string
	// Login starts a single node with an authorizer. Its address is for an administrator
	// who does not log in. That of [KafkaLogin] is for users who do: with SASL PLAIN and
	// their name as password (semel and other), with SCRAM if the administrator gave them a
	// password, or with an unsecured token of OAUTHBEARER. They have no rights. Defaults to
	// false.
	Login bool
	// Certificates is a directory with cert.pem and key.pem, the certificate of the node
	// and the authority that it trusts. With Login, users then need TLS, and those who show
	// a certificate log in with it at the address of [KafkaCertified]. Defaults to "".
	Certificates string
}

// KafkaLogin returns the address for users of a node that was started with Login.
func KafkaLogin(s *Server) string { return besides(s, loginOffset) }

// KafkaCertified returns the address for users with a certificate, of a node that was started
// with Certificates.
func KafkaCertified(s *Server) string { return besides(s, certifiedOffset) }

func besides(s *Server, offset int) string {
	host, port, _ := net.SplitHostPort(s.Addr())
	n, _ := strconv.Atoi(port)
	return net.JoinHostPort(host, strconv.Itoa(n+offset))
}

// These are the distances from the port of a node to those for users who log in.
const loginOffset, certifiedOffset = 3500, 3600

// StartKafka starts one node, broker and controller, and returns when it
// serves. Addr and URL are its bootstrap address. Nil options are valid. If
// Kafka is not installed, the error wraps [ErrNotInstalled].
//
// The server is configured for tests. Topics are not created automatically. A
// group starts without waiting for further members. Sessions and transactions
// may be as short as half a second, and a transaction ends one second after its
// time-out. As by default, Kafka never syncs records itself. After a kill a
// node takes two seconds longer to start than after a stop, because it waits
// for the end of its own session. A single node that has not been started again
// has a session of half a minute: on a busy machine it may stand still for
// seconds, and would lead no partition for a moment.
//
// If Kafka 4.3.1 ends between the answer to a commit and the markers of the
// transaction, it writes the markers after the restart, but not always. While
// it ends and starts, partitions have no leader. Kafka may take such a
// partition for deleted and call the transaction complete. Then neither readers
// of committed records nor the group can pass the transaction. Therefore a
// single node does not give up its leaderships when it is stopped. If records
// are missing in a test that ends a node under load, check [LostMarkers].
func StartKafka(ctx context.Context, opts *KafkaOptions) (*Server, error) {
	install, err := findKafka(opts)
	if err != nil {
		return nil, err
	}
	return startKafkaNode(ctx, install, kafkaNode{cluster: newKafkaID(), id: 1})
}

// LostMarker is a transaction that Kafka called complete although some of its
// markers were not written.
type LostMarker struct {
	Transaction string   // its transactional id
	Partitions  []string // those without the marker, such as "out-1"
}

// LostMarkers returns the transactions whose markers, according to its log,
// Kafka did not write. If records or offsets of these partitions are missing
// permanently, that is no fault of the clients.
func LostMarkers(kafka *Server) ([]LostMarker, error) {
	log, err := os.ReadFile(kafka.logFile())
	return lostMarkers(log), err
}

var (
	lostMarkerLine  = regexp.MustCompile(`Couldn't find leader endpoint for partitions (.*) while trying to send transaction markers for (\S+), these partitions`)
	topicPartitions = regexp.MustCompile(`[A-Za-z0-9._-]+-[0-9]+`)
)

func lostMarkers(log []byte) (list []LostMarker) {
	for _, line := range lostMarkerLine.FindAllSubmatch(log, -1) {
		lost := LostMarker{Transaction: string(line[2])}
		for _, name := range topicPartitions.FindAll(line[1], -1) {
			lost.Partitions = append(lost.Partitions, string(name))
		}
		list = append(list, lost)
	}
	return list
}

// kafkaInstall is the common part of all nodes of one start.
type kafkaInstall struct {
	java string
	jars []string
	opts KafkaOptions
}

func findKafka(opts *KafkaOptions) (*kafkaInstall, error) {
	k := &kafkaInstall{}
	if opts != nil {
		k.opts = *opts
	}
	if k.opts.HeapMiB == 0 {
		k.opts.HeapMiB = 256
	}
	var err error
	if k.java, err = Find(Java17); err != nil {
		return nil, err
	}
	jar, err := Find(Kafka43)
	if err != nil {
		return nil, err
	}
	// The order is always the same, because the class archive is valid for one
	// class path.
	k.jars, err = filepath.Glob(filepath.Join(filepath.Dir(jar), "*.jar"))
	return k, err
}

func (k *kafkaInstall) classPath() string { return strings.Join(k.jars, ":") }

// kafkaNode is the part that differs between nodes.
type kafkaNode struct {
	cluster string
	id      int
	// ports are the ports of all nodes of a cluster. It is empty for a single
	// node, which takes any port.
	ports []int
}

// controllerOffset is the distance from the port of a node to that of its
// controller. Nodes must know each other's ports before they start. All ports
// are below the ephemeral range.
const controllerOffset = 7000

func startKafkaNode(ctx context.Context, install *kafkaInstall, node kafkaNode) (*Server, error) {
	template, err := install.template(ctx)
	if err != nil {
		return nil, err
	}
	prepare := func(ctx context.Context, dir string) error {
		if err := asServer(exec.CommandContext(ctx, "cp", "-R", "--preserve=mode", filepath.Join(template, "data"), dataDir(dir))); err != nil {
			return err
		}
		return node.identify(dir)
	}
	kind := install.kind(node, readClassArchive(template))
	if node.ports == nil {
		return start(ctx, kind, prepare, nil)
	}
	return startOn(ctx, node.ports[node.id-1], kind, prepare, nil)
}

// identify turns a copy of the template into the data of this node.
func (n kafkaNode) identify(dir string) error {
	name := filepath.Join("data", "meta.properties")
	content, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return err
	}
	for key, value := range map[string]string{"cluster.id": n.cluster, "directory.id": newKafkaID(), "node.id": strconv.Itoa(n.id)} {
		line := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(key) + `=.*$`)
		content = line.ReplaceAll(content, []byte(key+"="+value))
	}
	return writeFile(dir, name, content)
}

func newKafkaID() string {
	var id [16]byte
	_, _ = rand.Read(id[:])   // never fails
	id[0] = id[0]&0x7f | 0x40 // Kafka refuses a leading "-"
	return base64.RawURLEncoding.EncodeToString(id[:])
}

func (k *kafkaInstall) kind(node kafkaNode, archive string) kind {
	return kind{
		name:    Kafka43,
		program: k.java,
		configure: func(dir string, port int) error {
			if !free(port+controllerOffset) || k.opts.Login && !(free(port+loginOffset) && free(port+certifiedOffset)) {
				return errPortTaken
			}
			properties, err := k.properties(dir, port, node)
			if err != nil {
				return err
			}
			return writeFile(dir, "server.properties", properties)
		},
		args: func(dir string, _ int) []string {
			// Compiling only once costs no speed in runs of a few seconds, and
			// saves a quarter of the processor time.
			return append([]string{
				fmt.Sprintf("-Xmx%dm", k.opts.HeapMiB), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", archive,
				// The server ignores TMPDIR and unpacks libraries in this
				// directory.
				"-Djava.io.tmpdir=" + dir,
			}, append(slices.Clone(k.opts.Java), "-cp", k.classPath(), "kafka.Kafka", "server.properties")...)
		},
		url: func(addr string) string { return addr },
		// Metadata may list the broker too early, from before it was killed.
		started: "Kafka Server started",
		ready: func(ctx context.Context, addr, _ string, _ int) error {
			return kafkaReady(ctx, addr, node)
		},
		stop:  syscall.SIGTERM,
		death: syscall.SIGKILL,
	}
}

func (k *kafkaInstall) properties(dir string, port int, node kafkaNode) ([]byte, error) {
	ports := node.ports
	if ports == nil {
		ports = []int{port}
	}
	voters := make([]string, len(ports))
	for i, p := range ports {
		voters[i] = fmt.Sprintf("%d@127.0.0.1:%d", i+1, p+controllerOffset)
	}
	copies, quorum := strconv.Itoa(len(ports)), strconv.Itoa(len(ports)/2+1)
	lines := map[string]string{
		"process.roles":                  "broker,controller",
		"node.id":                        strconv.Itoa(node.id),
		"controller.quorum.voters":       strings.Join(voters, ","),
		"controller.listener.names":      "CONTROLLER",
		"listeners":                      fmt.Sprintf("PLAINTEXT://127.0.0.1:%d,CONTROLLER://127.0.0.1:%d", port, port+controllerOffset),
		"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
		"log.dirs":                       dataDir(dir),
		"auto.create.topics.enable":      "false",
		"default.replication.factor":     copies,
		"min.insync.replicas":            quorum,

		// The default is 50 partitions each, which are created at the first
		// use.
		"offsets.topic.num.partitions":                     "4",
		"offsets.topic.replication.factor":                 copies,
		"transaction.state.log.num.partitions":             "4",
		"transaction.state.log.replication.factor":         copies,
		"transaction.state.log.min.isr":                    quorum,
		"share.coordinator.state.topic.num.partitions":     "4",
		"share.coordinator.state.topic.replication.factor": copies,
		"share.coordinator.state.topic.min.isr":            quorum,

		"group.initial.rebalance.delay.ms":                            "0",
		"group.min.session.timeout.ms":                                "500",
		"group.consumer.heartbeat.interval.ms":                        "300",
		"group.consumer.min.heartbeat.interval.ms":                    "100",
		"group.consumer.min.session.timeout.ms":                       "500",
		"group.consumer.assignment.interval.ms":                       "0",
		"transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",

		// A killed node has no leaderships until its former session ends.
		// During that time it may take the partitions of a transaction for
		// deleted.
		"broker.heartbeat.interval.ms": "300",
		"broker.session.timeout.ms":    "2000",
		// The default of 128 MiB does not fit into the heap.
		"log.cleaner.dedupe.buffer.size": "4194304",
	}
	if len(ports) == 1 {
		lines["controlled.shutdown.enable"] = "false"
		if _, err := os.Stat(filepath.Join(dir, logName)); errors.Is(err, fs.ErrNotExist) { // it starts for the first time
			lines["broker.session.timeout.ms"] = "30000"
		}
	}
	if k.opts.Login {
		if err := k.login(lines, port); err != nil {
			return nil, err
		}
	}
	maps.Copy(lines, k.opts.Properties)
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(lines)) {
		fmt.Fprintf(&text, "%s=%s\n", name, strings.ReplaceAll(lines[name], "\n", `\n`))
	}
	return []byte(text.String()), nil
}

// login adds what a node needs for users who log in.
func (k *kafkaInstall) login(lines map[string]string, port int) error {
	lines["listeners"] += fmt.Sprintf(",LOGIN://127.0.0.1:%d", port+loginOffset)
	protocol := "SASL_PLAINTEXT"
	if dir := k.opts.Certificates; dir != "" {
		certificate, err := os.ReadFile(filepath.Join(dir, "cert.pem"))
		if err != nil {
			return err
		}
		key, err := os.ReadFile(filepath.Join(dir, "key.pem"))
		if err != nil {
			return err
		}
		lines["listeners"] += fmt.Sprintf(",CERTIFIED://127.0.0.1:%d", port+certifiedOffset)
		lines["listener.security.protocol.map"] += ",CERTIFIED:SSL"
		lines["listener.name.certified.ssl.client.auth"] = "required"
		protocol = "SASL_SSL"
		for name, value := range map[string]string{"keystore.certificate.chain": string(certificate), "keystore.key": string(key), "truststore.certificates": string(certificate)} {
			store, _, _ := strings.Cut(name, ".")
			lines["ssl."+store+".type"], lines["ssl."+name] = "PEM", value
		}
	}
	lines["listener.security.protocol.map"] += ",LOGIN:" + protocol
	lines["sasl.enabled.mechanisms"] = "PLAIN,SCRAM-SHA-256,OAUTHBEARER"
	lines["listener.name.login.plain.sasl.jaas.config"] = `org.apache.kafka.common.security.plain.PlainLoginModule required user_semel="semel" user_other="other";`
	lines["listener.name.login.scram-sha-256.sasl.jaas.config"] = `org.apache.kafka.common.security.scram.ScramLoginModule required;`
	lines["listener.name.login.oauthbearer.sasl.jaas.config"] = KafkaTokens("")
	lines["authorizer.class.name"] = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
	lines["super.users"] = "User:ANONYMOUS"
	return nil
}

// KafkaTokens returns the value of the property
// listener.name.login.oauthbearer.sasl.jaas.config of a node that requires a scope of the tokens
// of its users.
func KafkaTokens(scope string) string {
	module := `org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker"`
	if scope != "" {
		module += fmt.Sprintf(" unsecuredValidatorRequiredScope=%q", scope)
	}
	return module + ";"
}

// prepareKafka makes the template for the installed programs.
func prepareKafka(ctx context.Context) error {
	install, err := findKafka(nil)
	if err != nil {
		return err
	}
	_, err = install.template(ctx)
	return err
}

// template returns a directory with formatted data, which is copied for each
// node, and a class archive, which halves the time of a start. It is made once
// for each Java, Kafka and machine.
func (k *kafkaInstall) template(ctx context.Context) (string, error) {
	version, err := exec.CommandContext(ctx, k.java, "-version").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("ask %s for its version: %w", k.java, err)
	}
	return template("kafka", k.java+"\n"+string(version)+"\n"+k.classPath(), func(dir string) error { return k.makeTemplate(ctx, dir) })
}

// makeTemplate formats data, starts a node with a copy of it, and keeps the
// class archive that the node writes when it stops.
func (k *kafkaInstall) makeTemplate(ctx context.Context, template string) error {
	const anyPort = firstPort // the formatted data does not contain the port
	node := kafkaNode{cluster: newKafkaID(), id: 1}
	properties, err := k.properties(template, anyPort, node)
	if err == nil {
		err = writeFile(template, "server.properties", properties)
	}
	if err != nil {
		return err
	}
	format := exec.CommandContext(ctx, k.java, "-XX:-UsePerfData", "-cp", k.classPath(),
		"kafka.tools.StorageTool", "format", "-t", node.cluster, "-c", filepath.Join(template, "server.properties"))
	if err := asServer(format); err != nil {
		return err
	}
	return archiveClasses(ctx, template, k.kind(node, writeClassArchive), func(ctx context.Context, dir string) error {
		return asServer(exec.CommandContext(ctx, "cp", "-R", "--preserve=mode", dataDir(template), dataDir(dir)))
	})
}
