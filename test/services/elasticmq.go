package services

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
)

// StartElasticMQ starts one server that answers as Amazon SQS does, and returns when
// it answers. It accepts every access key, and queues keep their messages and their
// deduplication ids through a kill. If the server is not installed, the error wraps
// [ErrNotInstalled].
//
// ElasticMQ differs from SQS in these points: the queue attribute
// DeduplicationScope has no effect, a FIFO dead-letter queue cannot be redriven, the
// names of errors have a prefix, a standard queue refuses an old receipt handle, and
// after a restart a message in flight does not block its group.
func StartElasticMQ(ctx context.Context) (*Server, error) {
	install, err := findElasticMQ()
	if err != nil {
		return nil, err
	}
	template, err := install.template(ctx)
	if err != nil {
		return nil, err
	}
	return start(ctx, install.kind(readClassArchive(template)), nil, nil)
}

type elasticMQInstall struct{ java, classPath string }

func findElasticMQ() (*elasticMQInstall, error) {
	java, err := Find(Java17)
	if err != nil {
		return nil, err
	}
	jar, err := Find(ElasticMQ)
	if err != nil {
		return nil, err
	}
	// The order is always the same, because the class archive is valid for one
	// class path.
	jars, err := filepath.Glob(filepath.Join(filepath.Dir(jar), "*.jar"))
	return &elasticMQInstall{java, strings.Join(jars, ":")}, err
}

const elasticMQConfig = "elasticmq.conf"

func (e *elasticMQInstall) kind(archive string) kind {
	return kind{
		name:    ElasticMQ,
		program: e.java,
		configure: func(dir string, port int) error {
			// Without WRITE_DELAY=0 a kill loses the messages of the last second.
			config := fmt.Sprintf(`include classpath("application.conf")
node-address { protocol = http, host = "127.0.0.1", port = %[1]d, context-path = "" }
rest-sqs { enabled = true, bind-hostname = "127.0.0.1", bind-port = %[1]d, sqs-limits = strict }
rest-stats { enabled = false }
aws { region = "us-east-1", accountId = "000000000000" }
messages-storage {
  enabled = true, driver-class = "org.h2.Driver", uri = "jdbc:h2:%[2]s;WRITE_DELAY=0"
  username = "", password = "", prune-data-on-init = false
}
`, port, filepath.Join(dir, "messages"))
			return writeFile(dir, elasticMQConfig, []byte(config))
		},
		args: func(dir string, _ int) []string {
			return []string{
				"-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", archive, "-Djava.io.tmpdir=" + dir,
				"-Dconfig.file=" + filepath.Join(dir, elasticMQConfig), "-cp", e.classPath, "org.elasticmq.server.Main",
			}
		},
		url:     func(addr string) string { return "http://" + addr },
		started: "=== ElasticMQ server",
		ready:   elasticMQReady,
		stop:    syscall.SIGTERM,
		death:   syscall.SIGKILL,
	}
}

var (
	elasticMQCreated  = regexp.MustCompile(`Creating queue CreateQueueData\(([^,]+),`)
	elasticMQRestored = regexp.MustCompile(`(?m)Restored \d+ messages in queue (\S+)$`)
)

// elasticMQReady returns nil if the server answers and has read its queues. After a
// restart it accepts requests before that, and would forget what it was sent.
func elasticMQReady(ctx context.Context, addr, dir string, _ int) error {
	log, err := os.ReadFile(filepath.Join(dir, "log"))
	if err != nil {
		return err
	}
	begun := bytes.LastIndex(log, []byte("Starting ElasticMQ server"))
	if begun < 0 {
		return errors.New("it has not begun")
	}
	restored := map[string]bool{}
	for _, queue := range elasticMQRestored.FindAllSubmatch(log[begun:], -1) {
		restored[string(queue[1])] = true
	}
	for _, queue := range elasticMQCreated.FindAllSubmatch(log[:begun], -1) {
		if name := string(queue[1]); !restored[name] {
			return fmt.Errorf("it has not read the queue %s", name)
		}
	}
	return elasticMQWorks(ctx, addr)
}

// elasticMQWorks sends a message through a queue of its own. The server loads most of its program
// with the first request of a kind. On a busy machine that takes longer than a client waits.
func elasticMQWorks(ctx context.Context, addr string) error {
	var queue struct{ QueueUrl string }
	if err := elasticMQAsk(ctx, addr, "CreateQueue", map[string]any{"QueueName": "semel-services"}, &queue); err != nil {
		return err
	}
	entry := map[string]any{"Id": "0", "MessageBody": "b"}
	if err := elasticMQAsk(ctx, addr, "SendMessageBatch", map[string]any{"QueueUrl": queue.QueueUrl, "Entries": []any{entry}}, &struct{}{}); err != nil {
		return err
	}
	var got struct {
		Messages []struct{ ReceiptHandle string }
	}
	if err := elasticMQAsk(ctx, addr, "ReceiveMessage", map[string]any{"QueueUrl": queue.QueueUrl, "MaxNumberOfMessages": 10}, &got); err != nil {
		return err
	}
	for _, m := range got.Messages {
		entry := map[string]any{"Id": "0", "ReceiptHandle": m.ReceiptHandle}
		if err := elasticMQAsk(ctx, addr, "DeleteMessageBatch", map[string]any{"QueueUrl": queue.QueueUrl, "Entries": []any{entry}}, &struct{}{}); err != nil {
			return err
		}
	}
	return nil
}

// elasticMQAsk sends a request of the protocol with JSON.
func elasticMQAsk(ctx context.Context, addr, action string, in, out any) (err error) {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/", bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/x-amz-json-1.0")
	request.Header.Set("X-Amz-Target", "AmazonSQS."+action)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, answer.Body.Close()) }()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("it answers %s to %s", answer.Status, action)
	}
	return json.NewDecoder(answer.Body).Decode(out)
}

// prepareElasticMQ makes the class archive for the installed programs.
func prepareElasticMQ(ctx context.Context) error {
	install, err := findElasticMQ()
	if err != nil {
		return err
	}
	_, err = install.template(ctx)
	return err
}

// template returns a directory with a class archive, which halves the time of a
// start. It is made once for each Java, ElasticMQ and machine.
func (e *elasticMQInstall) template(ctx context.Context) (string, error) {
	version, err := exec.CommandContext(ctx, e.java, "-version").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("ask %s for its version: %w", e.java, err)
	}
	return template(ElasticMQ, e.java+"\n"+string(version)+"\n"+e.classPath, func(dir string) error {
		return archiveClasses(ctx, dir, e.kind(writeClassArchive), nil)
	})
}
