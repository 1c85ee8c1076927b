package sqs_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/sqs"
	"github.com/semel-dev/semel/doctor"
)

// attributesOf answers requests for the attributes of queues, by name.
type attributesOf map[string]map[string]string

// RoundTrip implements http.RoundTripper.
func (a attributesOf) RoundTrip(r *http.Request) (*http.Response, error) {
	var in struct{ QueueUrl string }
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		return nil, err
	}
	body, err := json.Marshal(map[string]any{"Attributes": a[in.QueueUrl[strings.LastIndex(in.QueueUrl, "/")+1:]]})
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/x-amz-json-1.0"}}, Body: io.NopCloser(bytes.NewReader(body)), Request: r}, err
}

// TestQueueThatDeliversOnceIsRefused has a queue that moves a message to its dead-letter queue
// instead of delivering it twice, too late for parking.
func TestQueueThatDeliversOnceIsRefused(t *testing.T) {
	t.Parallel()
	for most, refused := range map[string]bool{"1": true, `"1"`: true, "2": false, "100": false} {
		policy := `{"deadLetterTargetArn":"arn:aws:sqs:eu-west-1:123456789012:dead","maxReceiveCount":` + most + `}`
		api := awssqs.New(awssqs.Options{
			Region: "eu-west-1", Credentials: aws.AnonymousCredentials{},
			HTTPClient: &http.Client{Transport: attributesOf{"in": {"RedrivePolicy": policy}}},
		})
		source, err := sqs.OpenSource(t.Context(), &sqs.SourceOptions{Client: api, Queue: "https://sqs.eu-west-1.amazonaws.com/123456789012/in"})
		if errors.Is(err, semel.ErrInvalidRequest) != refused || refused && !strings.Contains(err.Error(), "queue in has maxReceiveCount 1") {
			t.Errorf("maxReceiveCount %s: %v", most, err)
		}
		if source != nil {
			if err := source.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestExamineKnowsTheLeastReceiveCount has a lease of 5 minutes, and a server that tells no
// retentions.
func TestExamineKnowsTheLeastReceiveCount(t *testing.T) {
	t.Parallel()
	policy := func(most string) string {
		return `{"deadLetterTargetArn":"arn:aws:sqs:eu-west-1:123456789012:dead","maxReceiveCount":` + most + `}`
	}
	for _, c := range []struct {
		queue, dead map[string]string
		subject     string
		want        doctor.Severity
		found       string
	}{
		{map[string]string{}, nil, "queue in retention", doctor.Fine, "the server does not tell it"},
		{map[string]string{"RedrivePolicy": policy("1")}, map[string]string{}, "queue in maxReceiveCount", doctor.Broken, "1"},
		{map[string]string{"RedrivePolicy": policy("32")}, map[string]string{}, "queue in maxReceiveCount", doctor.Warning, "32"}, // 33 deliveries in a lease of 5 minutes, three times
		{map[string]string{"RedrivePolicy": policy("33")}, map[string]string{}, "queue in maxReceiveCount", doctor.Fine, "33"},
		{map[string]string{"RedrivePolicy": policy("100")}, map[string]string{}, "dead-letter queue dead retention", doctor.Fine, "the server does not tell it"},
	} {
		api := awssqs.New(awssqs.Options{
			Region: "eu-west-1", Credentials: aws.AnonymousCredentials{},
			HTTPClient: &http.Client{Transport: attributesOf{"in": c.queue, "dead": c.dead}},
		})
		findings, err := sqs.Examine(t.Context(), &sqs.ExamineOptions{
			Client: api, Queue: "https://sqs.eu-west-1.amazonaws.com/123456789012/in", Reads: true, Window: 8 * 24 * time.Hour, Lease: 5 * time.Minute,
		})
		if err != nil {
			t.Fatal(err)
		}
		var got doctor.Finding
		for _, f := range findings {
			if f.Subject == c.subject {
				got = f
			}
		}
		if got.Severity != c.want || got.Found != c.found {
			t.Errorf("%v, %v: %s: %v %q, want %v %q", c.queue, c.dead, c.subject, got.Severity, got.Found, c.want, c.found)
		}
	}
}
