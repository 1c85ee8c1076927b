package nats

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/pipeline"
)

// ExamineOptions name what a pipeline uses of a server.
type ExamineOptions struct {
	// URL and Client are as in SourceOptions.
	URL    string
	Client []natsgo.Option
	// Stream and Consumer are read. Empty means that the pipeline does not read.
	Stream, Consumer string
	// Create and Subjects are as in SourceOptions: what does not exist yet and will be
	// made is a notice.
	Create   bool
	Subjects []string
	// Subject is published to. Empty means that the pipeline does not publish.
	// CreateSubject says that OpenSink makes its stream.
	Subject string
	// Route is set instead of Subject if messages name their subjects.
	Route         *pipeline.Route
	CreateSubject bool
	// Window is how long keys are remembered.
	Window time.Duration
}

type examination struct {
	js       jetstream.JetStream
	opts     ExamineOptions
	findings []doctor.Finding
	examined []string // streams that are written
}

// Examine reports which settings of the server, stream and consumer support the
// promise of a pipeline, and which do not. It changes nothing, and blocks until
// the server has answered.
func Examine(ctx context.Context, opts *ExamineOptions) ([]doctor.Finding, error) {
	var rights denied
	conn, js, err := connect(ctx, opts.URL, opts.Client, &rights)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	e := &examination{js: js, opts: *opts}
	err = rights.during(ctx, func(ctx context.Context) error { return e.examine(ctx, conn) })
	if err != nil {
		return e.findings, failed(opts.URL, "", err)
	}
	return e.findings, nil
}

func (e *examination) examine(ctx context.Context, conn *natsgo.Conn) (err error) {
	opts := &e.opts
	e.note(doctor.Fine, "server", "nats-server "+conn.ConnectedServerVersion(), "", "")
	e.note(doctor.Notice, "sync_interval", "clients cannot see it; it is 2m unless the server's configuration says otherwise",
		"messages of the last two minutes that the server has confirmed are lost if all its replicas lose power", "set jetstream { sync_interval: always } on the server, or use streams with 3 replicas in different places")
	if opts.Stream != "" {
		err = e.read(ctx)
	}
	subjects := []string{opts.Subject}
	if opts.Route != nil {
		subjects = slices.Clone(opts.Route.Names())
		for _, prefix := range opts.Route.Prefixes() {
			e.note(doctor.Notice, "subjects "+prefix+"*", "messages name them, so they are not checked", "a message whose subject no stream takes fails, and is parked", "look at semel parked ls")
		}
	}
	for _, subject := range subjects {
		if err == nil && subject != "" {
			err = e.written(ctx, subject)
		}
	}
	return err
}

func (e *examination) note(severity doctor.Severity, subject, found, cost, remedy string) {
	e.findings = append(e.findings, doctor.Finding{Severity: severity, Subject: subject, Found: found, Cost: cost, Remedy: remedy})
}

// read examines the stream and the consumer that are read.
func (e *examination) read(ctx context.Context) error {
	name, consumer := e.opts.Stream, e.opts.Consumer
	stream, err := e.js.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		e.absent("stream "+name, "nothing is read", "create it with nats stream add "+name+", or set source.nats.subjects with create: true", e.opts.Create && len(e.opts.Subjects) > 0)
		return nil
	}
	if err != nil {
		return err
	}
	config := stream.CachedInfo().Config
	e.stream(&config)
	if age := config.MaxAge; e.opts.Window != semel.Forever && (age == 0 || age > e.opts.Window) {
		window := span(e.opts.Window)
		e.note(doctor.Notice, "stream "+name+" max_age", lasting(age), "a message that is delivered again after the window of "+window+", such as after the consumer was made again, has its effect again", "set max_age on the stream, shorter than the window ("+window+")")
	}
	reader, err := stream.Consumer(ctx, consumer)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		e.absent("consumer "+consumer, "nothing is read", "create it with nats consumer add "+name+" "+consumer+" --pull --ack explicit, or set source.nats.create", e.opts.Create)
		return nil
	}
	if err != nil {
		return err
	}
	e.consumer(reader.CachedInfo())
	return nil
}

// lasting shows an age limit.
func lasting(age time.Duration) string {
	if age == 0 {
		return "none: messages stay"
	}
	return span(age)
}

// span shows a duration, in days if possible.
func span(d time.Duration) string {
	const day = 24 * time.Hour
	if d >= day && d%day == 0 {
		return fmt.Sprintf("%dd", d/day)
	}
	return d.String()
}

// absent notes what does not exist. create says that the pipeline makes it.
func (e *examination) absent(subject, cost, remedy string, create bool) {
	if create {
		e.note(doctor.Notice, subject, "it does not exist yet", "", "nothing: semel run makes it")
		return
	}
	e.note(doctor.Broken, subject, "it does not exist", cost, remedy)
}

// stream examines a stream that is read or written.
func (e *examination) stream(c *jetstream.StreamConfig) {
	subject := "stream " + c.Name + " "
	if c.Storage == jetstream.MemoryStorage {
		e.note(doctor.Broken, subject+"storage", "memory", "all messages are lost when the server ends", "use file storage")
	} else {
		e.note(doctor.Fine, subject+"storage", "file", "", "")
	}
	if c.Replicas < 3 {
		e.note(doctor.Warning, subject+"replicas", fmt.Sprint(c.Replicas), "messages are lost with the disk of that server, and are not available while it is down", "use 3 replicas in a cluster")
	} else {
		e.note(doctor.Fine, subject+"replicas", fmt.Sprint(c.Replicas), "", "")
	}
	limited := c.MaxMsgs > 0 || c.MaxBytes > 0 || c.MaxMsgsPerSubject > 0
	if c.Retention == jetstream.LimitsPolicy && limited && c.Discard == jetstream.DiscardOld {
		e.note(doctor.Warning, subject+"discard", "old", "when the stream reaches its limit, the oldest messages are deleted although the pipeline has not read them", "use discard: new, or limits that the backlog never reaches")
	}
}

// consumer examines the consumer that is read.
func (e *examination) consumer(info *jetstream.ConsumerInfo) {
	c := &info.Config
	subject := "consumer " + info.Name + " "
	if c.AckPolicy != jetstream.AckExplicitPolicy {
		e.note(doctor.Broken, subject+"ack_policy", c.AckPolicy.String(), "a message is forgotten before its effect", "make a consumer with the ack policy explicit")
	} else {
		e.note(doctor.Fine, subject+"ack_policy", "explicit", "", "")
	}
	if c.MaxDeliver > 0 {
		e.note(doctor.Warning, subject+"max_deliver", fmt.Sprint(c.MaxDeliver), fmt.Sprintf("a message is never delivered again after its delivery %d, even if the process that had it died", c.MaxDeliver),
			"set it to -1: the pipeline counts attempts by itself and parks a message")
	} else {
		e.note(doctor.Fine, subject+"max_deliver", "no limit", "", "")
	}
	if c.AckWait < 5*time.Second {
		e.note(doctor.Warning, subject+"ack_wait", c.AckWait.String(), "a message whose process pauses for a moment is delivered to another process", "use 30s; the pipeline extends it while a message is processed")
	} else {
		e.note(doctor.Fine, subject+"ack_wait", c.AckWait.String(), "", "")
	}
	if c.MaxAckPending > 0 && info.NumAckPending >= c.MaxAckPending {
		e.note(doctor.Warning, subject+"max_ack_pending", fmt.Sprintf("%d of %d messages wait for an acknowledgement", info.NumAckPending, c.MaxAckPending), "the server delivers nothing more until some are acknowledged", "look for the process that has them, or raise the limit")
	}
}

// written examines the stream that takes the output.
func (e *examination) written(ctx context.Context, to string) error {
	name, err := e.js.StreamNameBySubject(ctx, to)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if e.opts.CreateSubject {
			e.absent("stream of the subject "+to, "", "", true)
		} else {
			e.note(doctor.Broken, "subject "+to, "no stream takes it", "nothing is written", "create a stream with nats stream add, or set sink.nats.create and sink.nats.stream")
		}
		return nil
	}
	if err != nil {
		return err
	}
	stream, err := e.js.Stream(ctx, name)
	if err != nil {
		return err
	}
	config := stream.CachedInfo().Config
	if slices.Contains(e.examined, name) {
		return nil
	}
	e.examined = append(e.examined, name)
	if name != e.opts.Stream {
		e.stream(&config)
	}
	subject := "stream " + name + " duplicate_window"
	switch {
	case config.Duplicates > e.opts.Window:
		e.note(doctor.Warning, subject, config.Duplicates.String()+", longer than the window of "+e.opts.Window.String(), "a message that comes after the window is new for the pipeline, and the server drops it and reports success", "use a window that is longer than the stream's duplicate window")
	case config.Duplicates < time.Minute:
		e.note(doctor.Warning, subject, config.Duplicates.String(), "an attempt that is repeated after it, because its answer was lost, is stored twice", "use 2m or more")
	default:
		e.note(doctor.Fine, subject, config.Duplicates.String()+": repeated attempts are recognised for that long; the store recognises messages for "+e.opts.Window.String(), "", "")
	}
	return nil
}
