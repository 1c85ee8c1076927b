package doctorcmd_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// sqsAnswer is what Amazon answers to a request for the attributes of a queue.
type sqsAnswer struct {
	status     int // 0 is 200
	kind, text string
	attributes map[string]string
}

// amazon answers as the JSON protocol of SQS, with one answer for each queue name.
func amazon(t *testing.T, answers map[string]sqsAnswer) (url string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var in struct{ QueueUrl string }
		if err == nil {
			err = json.Unmarshal(body, &in)
		}
		if target := r.Header.Get("X-Amz-Target"); err != nil || target != "AmazonSQS.GetQueueAttributes" {
			t.Errorf("request %s: %v", target, err)
		}
		answer, ok := answers[in.QueueUrl[strings.LastIndex(in.QueueUrl, "/")+1:]]
		if !ok {
			answer = sqsAnswer{status: 400, kind: "com.amazonaws.sqs#QueueDoesNotExist", text: "The specified queue does not exist."}
		}
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		var out any = map[string]any{"Attributes": answer.attributes}
		if answer.status != 0 {
			w.WriteHeader(answer.status)
			out = map[string]string{"__type": answer.kind, "message": answer.text}
		}
		if err := json.NewEncoder(w).Encode(out); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// TestDoctorComparesSQSQueuesWithWindowAndLease examines queues with the attributes that
// Amazon documents. ElasticMQ does not have all of them.
func TestDoctorComparesSQSQueuesWithWindowAndLease(t *testing.T) {
	const day = 24 * 60 * 60
	queue := func(days int, more map[string]string) sqsAnswer {
		all := map[string]string{
			"MessageRetentionPeriod": strconv.Itoa(days * day), "VisibilityTimeout": "45", "MaximumMessageSize": "1048576",
			"ApproximateNumberOfMessages": "0", "ApproximateNumberOfMessagesNotVisible": "0", "ApproximateNumberOfMessagesDelayed": "0",
		}
		maps.Copy(all, more)
		return sqsAnswer{attributes: all}
	}
	limit := func(dead string, most any) map[string]string {
		return map[string]string{"RedrivePolicy": fmt.Sprintf(`{"deadLetterTargetArn":"arn:aws:sqs:eu-west-1:123456789012:%s","maxReceiveCount":%v}`, dead, most)}
	}
	const denied = "User: arn:aws:iam::123456789012:user/app is not authorized to perform: sqs:getqueueattributes"
	url := amazon(t, map[string]sqsAnswer{
		"plain": queue(4, nil), "long": queue(14, nil), "dead": queue(14, nil), "short": queue(4, nil), "out.fifo": queue(4, map[string]string{"ContentBasedDeduplication": "true"}),
		"limited": queue(4, limit("dead", 20)), "hasty": queue(4, limit("dead", `"3"`)), "loses": queue(4, limit("short", 20)), "fifo.fifo": queue(4, limit("dead", 20)),
		"lost": queue(4, limit("absent", 20)), "secret": queue(4, limit("denied", 20)),
		"busy":    queue(4, map[string]string{"ApproximateNumberOfMessagesNotVisible": "110000"}),
		"denied":  {status: 400, kind: "com.amazon.coral.service#AccessDeniedException", text: denied},
		"unknown": {status: 403, kind: "com.amazon.coral.service#UnrecognizedClientException", text: "The security token included in the request is invalid."},
	})
	for _, c := range []struct {
		queue, window, lease string
		status               int
		want                 []string
	}{
		{"plain", "5d", "30s", term.ExitDone, []string{"standard: SQS recognises no repeated message", "96h0m0s, within the window of 120h0m0s", "the queue's own 45s are not used", "no limit"}},
		{"long", "5d", "30s", term.ExitDone, []string{"336h0m0s", "choose a window that is longer than the retention"}},
		{"limited", "18d", "30s", term.ExitDone, []string{"fine queue limited maxReceiveCount 20", "336h0m0s, with that of limited within the window of 432h0m0s"}},
		{"limited", "10d", "30s", term.ExitDone, []string{"redriven after the window of 240h0m0s", "choose a window of 432h0m0s"}},
		{"limited", "18d", "5m", term.ExitFound, []string{"set it to 33 or more", "every 30s until its lease of 5m0s ends"}},
		{"hasty", "18d", "30s", term.ExitFound, []string{"after 3 deliveries", "set it to 10 or more"}},
		{"loses", "18d", "30s", term.ExitFound, []string{"may be deleted as soon as it arrives", "make it longer than the retention of loses"}},
		{"fifo.fifo", "18d", "30s", term.ExitDone, []string{"FIFO: SQS recognises a repeated message for five minutes, the store for 432h0m0s"}},
		{"lost", "18d", "30s", term.ExitFound, []string{"queue absent it does not exist", "SQS keeps delivering a message that has reached maxReceiveCount"}},
		{"secret", "18d", "30s", term.ExitDone, []string{"queue denied this process may not read its attributes", "permit sqs:GetQueueAttributes"}},
		{"busy", "18d", "30s", term.ExitFound, []string{"110000 of 120000 messages", "look for the process that has them"}},
		{"denied", "18d", "30s", term.ExitDone, []string{"queue denied this process may not read its attributes", "permit sqs:GetQueueAttributes"}},
		{"unknown", "18d", "30s", term.ExitFailed, []string{"SQS refuses these credentials", "log in again with aws sso login"}},
		{"absent", "18d", "30s", term.ExitFound, []string{"it does not exist", "nothing is read or written", "aws sqs create-queue --queue-name absent"}},
	} {
		programtest.SetAWS(t, nil)
		got := doctorOfSQS(t, url+"/123456789012/"+c.queue, url+"/123456789012/out.fifo", c.window, c.lease)
		text := strings.Join(strings.Fields(got.Stdout+got.Stderr), " ")
		for _, want := range append(c.want, "MaximumMessageSize 1048576 bytes; a larger message is parked", "ContentBasedDeduplication true") {
			if !strings.Contains(text, want) {
				t.Errorf("%s, window %s, lease %s: %q is missing in\n%s", c.queue, c.window, c.lease, want, got.Stdout)
			}
		}
		if got.Status != c.status {
			t.Errorf("%s, window %s, lease %s: exit %d, want %d\n%s", c.queue, c.window, c.lease, got.Status, c.status, got.Stdout)
		}
	}
}

// doctorOfSQS examines a pipeline from one queue to another.
func doctorOfSQS(t *testing.T, from, to, window, lease string) programtest.Outcome {
	t.Helper()
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), fmt.Sprintf(`stores: { keys: { embedded: { path: ./keys } } }
pipelines:
  p: { source: { sqs: { queue: %q } }, key: { id: .id, on_missing: park }, window: %s, lease: %s, store: keys, sink: { sqs: { queue: %q } }, parked: { path: ./parked } }
`, from, window, lease, to))
	return programtest.Run(t, "", "doctor", file)
}

// TestSQSErrorsHaveACauseAndARemedy examines a real server, and an address without one.
func TestSQSErrorsHaveACauseAndARemedy(t *testing.T) {
	url := programtest.Servers.SQS(t) + "/000000000000/"
	nowhere := "http://" + servicestest.FreeAddr(t) + "/000000000000/orders"
	for _, c := range []struct {
		from string
		env  map[string]string
		want string
	}{
		{url + "absent.fifo", nil, "aws sqs create-queue --queue-name absent.fifo --attributes FifoQueue=true"},
		{url + "orders", map[string]string{"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "sqs.profile or AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"},
		{nowhere, nil, "connection refused"},
	} {
		programtest.SetAWS(t, c.env)
		got := doctorOfSQS(t, c.from, strings.TrimSuffix(c.from, ".fifo")+"-out", "28d", "30s")
		if text := strings.Join(strings.Fields(got.Stdout+got.Stderr), " "); got.Status == term.ExitDone || !strings.Contains(text, c.want) {
			t.Errorf("%s: exit %d, %q is missing in\n%s%s", c.from, got.Status, c.want, got.Stdout, got.Stderr)
		}
	}
}
