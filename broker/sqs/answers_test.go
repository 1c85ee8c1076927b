package sqs_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semel-dev/semel/broker/sqs"
	"github.com/semel-dev/semel/internal/peertest"
)

// answerWith answers requests with a status and a text.
func answerWith(status int, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		if strings.HasPrefix(text, "<") {
			w.Header().Set("Content-Type", "text/html")
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	}
}

// errorOf is an error as SQS writes it.
func errorOf(status int, code string) http.HandlerFunc {
	return answerWith(status, fmt.Sprintf(`{"__type":"com.amazonaws.sqs#%s","message":"m"}`, code))
}

// entryWith answers for the first message of a batch.
func entryWith(code string, fault bool) http.HandlerFunc {
	return answerWith(http.StatusOK, fmt.Sprintf(`{"Failed":[{"Id":"0","Code":%q,"SenderFault":%v,"Message":"m"}]}`, code, fault))
}

const html = "<html><body><h1>503 Service Unavailable</h1></body></html>"

// cutOff closes the connection after some bytes of an answer that announces more.
func cutOff(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		_, _ = io.WriteString(conn, text)
		_ = conn.Close()
	}
}

// peerFor returns the URL of a queue whose requests with an action get an answer. Others
// succeed.
func peerFor(t testing.TB, action string, answer http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch got := strings.TrimPrefix(r.Header.Get("X-Amz-Target"), "AmazonSQS."); got {
		case action:
			answer(w, r)
		case "GetQueueAttributes":
			answerWith(http.StatusOK, `{"Attributes":{}}`)(w, r)
		default:
			answerWith(http.StatusOK, "{}")(w, r)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL + "/123456789012/orders"
}

// TestServerAnswersAreClassifiedAsDocumented has the rows of SQS in the table of broker/ANSWERS.md.
func TestServerAnswersAreClassifiedAsDocumented(t *testing.T) {
	t.Parallel()
	deliver := func(answer http.HandlerFunc) func(*testing.T) error {
		return func(t *testing.T) error {
			queue := peerFor(t, "SendMessageBatch", answer)
			sink, err := sqs.OpenSink(t.Context(), &sqs.SinkOptions{Client: client(t, queue), Queue: queue})
			if err != nil {
				t.Fatal(err)
			}
			return peertest.DeliverOne(t, sink, "{}")
		}
	}
	gone := func(t *testing.T) error {
		front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Connection", "close") // the next request needs a connection
			answerWith(http.StatusOK, `{"Attributes":{}}`)(w, r)
		}))
		queue := front.URL + "/123456789012/orders"
		sink, err := sqs.OpenSink(t.Context(), &sqs.SinkOptions{Client: client(t, queue), Queue: queue})
		if err != nil {
			t.Fatal(err)
		}
		front.Close()
		return peertest.DeliverOne(t, sink, "{}")
	}
	peertest.RunAnswers(t, "SQS", []peertest.Answer{
		{Name: "no connection", Means: peertest.Server, Deliver: gone},
		{Name: "400 `AccessDenied`, `QueueDoesNotExist`, `ExpiredToken`, `ThrottlingException`, and others about the queue or the credentials", Means: peertest.Server, Deliver: peertest.Same(deliver(errorOf(400, "AccessDeniedException")), deliver(errorOf(400, "QueueDoesNotExist")), deliver(errorOf(403, "ExpiredToken")), deliver(errorOf(400, "ThrottlingException")))},
		{Name: "a page of a proxy with 4xx", Means: peertest.Server, Deliver: deliver(answerWith(403, html))},
		{Name: "500 `InternalError`", Means: peertest.ServerInDoubt, Deliver: deliver(errorOf(500, "InternalError"))},
		{Name: "503 `ServiceUnavailable`", Means: peertest.Server, Deliver: deliver(errorOf(503, "ServiceUnavailable"))},
		{Name: "a page of a proxy with 5xx", Means: peertest.ServerInDoubt, Deliver: deliver(answerWith(503, html))},
		{Name: "a page of a proxy with 200", Means: peertest.ServerInDoubt, Deliver: deliver(answerWith(200, html))},
		{Name: "a cut connection", Means: peertest.ServerInDoubt, Deliver: deliver(cutOff(""))},
		{Name: "half an answer", Means: peertest.ServerInDoubt, Deliver: deliver(cutOff("HTTP/1.1 200 OK\r\nContent-Type: application/x-amz-json-1.0\r\nContent-Length: 500\r\n\r\n{\"Succ"))},
		{Name: "an answer without the message", Means: peertest.ServerInDoubt, Deliver: deliver(answerWith(200, "{}"))},
		{Name: "`InternalError` for one message", Means: peertest.ServerInDoubt, Deliver: deliver(entryWith("InternalError", false))},
		{Name: "`ThrottlingException`, `KmsThrottled` or `AccessDenied` for one message", Means: peertest.Server, Deliver: peertest.Same(deliver(entryWith("ThrottlingException", true)), deliver(entryWith("KmsThrottled", true)), deliver(entryWith("AccessDenied", true)))},
		{Name: "`InvalidMessageContents`, `InvalidParameterValue`, `BatchRequestTooLong` and others about the content", Means: peertest.MessageForGood, Deliver: peertest.Same(deliver(entryWith("InvalidMessageContents", true)), deliver(entryWith("InvalidParameterValue", true)), deliver(entryWith("BatchRequestTooLong", true)), deliver(errorOf(400, "InvalidMessageContents")))},
		{Name: "413 of a proxy", Means: peertest.MessageForGood, Deliver: deliver(answerWith(413, html))},
		{Name: "another fault of the sender for one message", Means: peertest.Message, Deliver: deliver(entryWith("SomethingElse", true))},
	})
}

// TestSourceContinuesAfterInvalidAnswers gives the source wrong answers, and then a message.
func TestSourceContinuesAfterInvalidAnswers(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]http.HandlerFunc{
		"error": errorOf(500, "InternalError"), "busy": errorOf(503, "ServiceUnavailable"), "denied": errorOf(400, "AccessDeniedException"),
		"page": answerWith(503, html), "page with 200": answerWith(200, html), "cut": cutOff(""),
		"half": cutOff("HTTP/1.1 200 OK\r\nContent-Type: application/x-amz-json-1.0\r\nContent-Length: 500\r\n\r\n{\"Mess"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var well atomic.Bool
			queue := peerFor(t, "ReceiveMessage", func(w http.ResponseWriter, r *http.Request) {
				if !well.Load() {
					answer(w, r)
					return
				}
				text, err := json.Marshal(map[string]any{"Messages": []map[string]string{{"Body": "{}", "MessageId": "m", "ReceiptHandle": "h"}}})
				if err != nil {
					t.Error(err)
				}
				answerWith(200, string(text))(w, r)
			})
			source, err := sqs.OpenSource(t.Context(), &sqs.SourceOptions{Client: client(t, queue), Queue: queue})
			if err != nil {
				t.Fatal(err)
			}
			defer source.Close(context.Background())
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for late := time.Now().Add(time.Minute); source.Ready(t.Context()) == nil && time.Now().Before(late); <-tick.C {
			}
			if source.Ready(t.Context()) == nil {
				t.Error("the source is ready")
			}
			well.Store(true)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if items, err := source.Read(ctx); err != nil || len(items) == 0 {
				t.Errorf("%d messages, %v", len(items), err)
			}
		})
	}
}
