package httpsrc

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/httpsrc/provider"
	"github.com/semel-dev/semel/pipeline"
)

// decisionHeader is the header of an answer with the decision about the
// message.
const decisionHeader = "Semel-Decision"

const jsonType = "application/json"

// answer is the answer to one request.
type answer struct {
	status   int
	decision string
	after    time.Duration
	body     []byte
	text     string
	doubt    string          // why messages fail all alike, or ""
	json     bool            // body is JSON
	reply    *provider.Reply // of a handshake; nil for a message
}

// retryDoubtful is when the sender of a message may try again that was parked like all others.
const retryDoubtful = time.Minute

const (
	decidedParked   = "parked"
	decidedDropped  = "dropped"
	decidedInFlight = "in_flight"
)

// later returns the answer to a request whose message is not settled.
func later(text string) *answer {
	return &answer{status: http.StatusServiceUnavailable, after: time.Second, text: text}
}

// settled returns the answer to a message that was acknowledged.
func settled(it *pipeline.Item) answer {
	switch {
	case it.Parked != "":
		text := decidedParked + ": " + string(it.Parked)
		if it.Parked == pipeline.ReasonParkedBefore {
			text = string(it.Parked)
		}
		return answer{status: http.StatusAccepted, decision: decidedParked, text: text}
	case it.Err != nil:
		return answer{status: http.StatusUnprocessableEntity, decision: decidedDropped, text: "given up"}
	case it.Result.Kind == semel.Failed: // permanently, and recorded as the outcome of its key
		return answer{status: http.StatusUnprocessableEntity, decision: it.Decision.String(), text: "failed permanently before"}
	}
	return answer{status: http.StatusOK, decision: it.Decision.String(), body: it.Result.Data}
}

// doubtful returns the answer to a message that was parked while messages fail all alike. 202
// would tell its sender that all is well.
func doubtful(a answer, doubt string) answer {
	a.status, a.after, a.doubt = http.StatusServiceUnavailable, retryDoubtful, doubt
	a.text += ": " + doubt
	return a
}

// returned returns the answer to a message that its sender must send again. Amazon SNS, for one,
// takes any 4xx for final.
func returned(it *pipeline.Item, delay time.Duration) answer {
	a := answer{status: http.StatusServiceUnavailable, after: max(delay, time.Second), text: "not settled: send it again"}
	_, ofStore := errors.AsType[*pipeline.StoreError](it.Err)
	_, ofTarget := errors.AsType[*pipeline.UnavailableError](it.Err)
	switch {
	case it.Decision == semel.InFlight:
		a.decision, a.text = decidedInFlight, "another delivery holds the key: send it again"
	case ofStore:
		a.text = "the store of the receiver does not work now, and its log says why: send it again"
	case ofTarget:
		a.text = "the target of the receiver does not work now, and its log says why: send it again"
	}
	return a
}

// counts are the outcomes of the messages of one request. They are the body of its answer.
type counts struct {
	Messages  int `json:"messages"`
	Fresh     int `json:"fresh"`
	Duplicate int `json:"duplicate"`
	Parked    int `json:"parked"`
	Dropped   int `json:"dropped"`
	// Unsettled messages must be sent again. InFlight of them have a key that another
	// delivery holds.
	Unsettled int `json:"unsettled"`
	InFlight  int `json:"in_flight"`
	// Cause says why the request is not answered with 202 although its messages are parked.
	Cause string `json:"cause,omitempty"`

	after time.Duration // the longest of those of the unsettled messages
	doubt string        // why messages fail all alike, or ""
}

// add counts the answer of one message.
func (c *counts) add(a *answer) {
	c.Messages++
	switch {
	case a.decision == decidedParked:
		c.Parked++
		c.doubt = a.doubt
	case a.status == http.StatusUnprocessableEntity:
		c.Dropped++
	case a.status == http.StatusOK && a.decision == semel.Fresh.String():
		c.Fresh++
	case a.status == http.StatusOK:
		c.Duplicate++
	default:
		c.Unsettled++
		c.after = max(c.after, a.after)
		if a.decision == decidedInFlight {
			c.InFlight++
		}
	}
}

// answer returns the answer of a request with several messages.
func (c *counts) answer() answer {
	a := answer{status: http.StatusOK, after: c.after, json: true}
	switch {
	case c.Unsettled > 0:
		a.status = http.StatusServiceUnavailable
	case c.doubt != "" && c.Parked == c.Messages:
		a.status, a.after, c.Cause = http.StatusServiceUnavailable, retryDoubtful, c.doubt
	case c.Parked > 0:
		a.status = http.StatusAccepted
	case c.Dropped > 0 && c.Dropped == c.Messages:
		a.status = http.StatusUnprocessableEntity
	}
	for _, of := range []struct {
		count    int
		decision string
	}{{c.Fresh, semel.Fresh.String()}, {c.Duplicate, semel.Duplicate.String()}, {c.Parked, decidedParked}, {c.Dropped, decidedDropped}, {c.InFlight, decidedInFlight}} {
		if of.count > 0 && of.count == c.Messages {
			a.decision = of.decision
		}
	}
	body, err := json.Marshal(c)
	if err != nil {
		panic(err) // numbers always encode
	}
	a.body = append(body, '\n')
	return a
}

func write(w http.ResponseWriter, a answer) {
	if a.reply != nil {
		for name, value := range a.reply.Header {
			w.Header().Set(name, value)
		}
		w.WriteHeader(a.reply.Status)
		_, _ = w.Write(a.reply.Body) // a sender that has left gets no answer
		return
	}
	if a.decision != "" {
		w.Header().Set(decisionHeader, a.decision)
	}
	if a.after > 0 {
		seconds := int64((a.after + time.Second - 1) / time.Second)
		w.Header().Set("Retry-After", strconv.FormatInt(seconds, 10))
	}
	if a.text != "" {
		http.Error(w, a.text, a.status)
		return
	}
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Content-Type", "application/octet-stream")
	if a.json {
		w.Header().Set("Content-Type", jsonType)
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body) // a sender that has left gets no answer
}
