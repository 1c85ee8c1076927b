package sqs

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/inbox"
	"github.com/semel-dev/semel/internal/invalid"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/pipeline"
)

// SourceOptions are the options of OpenSource. Client and Queue are required.
type SourceOptions struct {
	// Client signs and sends requests. Requests go to the host of Queue, and are
	// repeated by the source, whatever the client's options say about that.
	Client *awssqs.Client
	// Queue is the URL of the queue.
	Queue string
	// Visibility is how long SQS hides a message from other processes if this
	// process dies. The source extends it while the message is processed. It is
	// rounded up to seconds. Defaults to 30 s.
	Visibility time.Duration
}

const (
	defaultVisibility = 30 * time.Second
	// longPoll is how long SQS waits for the first message, in seconds. A refusal shows only in
	// the next request, and must be named within 10 s, so it is not the most that SQS permits.
	longPoll = 8
	// receivers is how many requests for messages there are at most. One is always
	// under way. The others run as long as SQS answers with full batches.
	receivers = 4
	// visibilityLimit is how long SQS hides a message at most, counted from the
	// delivery. The rest is for the way of the request.
	visibilityLimit = 12*time.Hour - time.Minute
	// attemptLife is how long SQS repeats the answer to a request for messages.
	attemptLife = 4 * time.Minute
)

// Source reads a queue. OpenSource makes it.
type Source struct {
	queue      *queue
	visibility time.Duration
	standard   *pipeline.Partition // the messages of a standard queue
	stop       context.CancelFunc
	running    sync.WaitGroup
	trouble    atomic.Pointer[error] // why nothing can be received now

	mu     sync.Mutex // guards the fields below
	inbox  inbox.Inbox
	limit  inbox.Limit        // of the deliveries of a message
	held   map[*held]struct{} // not settled, and not given back
	groups map[string]*group  // of a FIFO queue, those with held messages
	place  uint64             // of the last message in the order of arrival
	busy   bool               // the last batch was full
	closed bool
}

// held is a message that SQS has handed to this process.
type held struct {
	handle string
	item   *pipeline.Item
	place  uint64
	first  time.Time // when it came

	// Source.mu guards these fields.
	group *group
	due   time.Time // when another process can get it
	gone  bool      // this process has lost it, and it comes again
}

// group is a message group with messages in this process.
type group struct {
	id        string
	partition *pipeline.Partition
	held      int
}

var (
	_ pipeline.Source = (*Source)(nil)
	_ pipeline.Waiter = (*Source)(nil)
	_ doctor.Readier  = (*Source)(nil)
)

// OpenSource looks up the queue. It blocks until SQS has answered. The error wraps a
// *types.QueueDoesNotExist of the client library if there is no such queue, and
// semel.ErrInvalidRequest if the queue delivers a message only once (maxReceiveCount 1).
func OpenSource(ctx context.Context, opts *SourceOptions) (*Source, error) {
	var o SourceOptions
	if opts != nil {
		o = *opts
	}
	wrong := invalid.In("sqs: SourceOptions.")
	q, err := newQueue(o.Client, o.Queue, "SourceOptions")
	wrong.Join(err)
	o.Visibility = (cmp.Or(o.Visibility, defaultVisibility) + time.Second - 1).Truncate(time.Second)
	if o.Visibility < time.Second || o.Visibility > visibilityLimit {
		wrong.Add("Visibility: %v: want 1 s to %v", o.Visibility, visibilityLimit)
	}
	if err := wrong.Err(); err != nil {
		return nil, err
	}
	attributes, err := q.attributes(ctx)
	if err != nil {
		return nil, fmt.Errorf("sqs: %w", err)
	}
	if parsePolicy(attributes[string(types.QueueAttributeNameRedrivePolicy)]).Most == 1 {
		return nil, fmt.Errorf("sqs: queue %s has maxReceiveCount 1: the end of this process would move all messages that it has to the dead-letter queue, also those that were not tried: set maxReceiveCount to 10 or more: %w", q.Name, semel.ErrInvalidRequest)
	}
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	s := &Source{
		queue: q, visibility: o.Visibility,
		standard: pipeline.NewPartition(q.Name), stop: stop,
		held: map[*held]struct{}{}, groups: map[string]*group{},
	}
	s.inbox = inbox.New(&s.mu)
	s.follow(attributes)
	for n := range receivers {
		s.running.Go(func() { s.receive(working, n == 0) })
	}
	s.running.Go(func() { s.beat(working) })
	return s, nil
}

// Traits implements pipeline.Source.
func (s *Source) Traits() pipeline.SourceTraits {
	return pipeline.SourceTraits{Positions: true, CanReturn: true, Exhausted: s.inbox.ReadExhausted, Place: place, Lag: s.Lag}
}

// follow takes over the redrive policy of the queue, which may change at any time.
func (s *Source) follow(attributes map[string]string) {
	most := parsePolicy(attributes[string(types.QueueAttributeNameRedrivePolicy)]).Most
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit = inbox.Limit{
		Deliveries: most,
		Reserve:    2, // a request whose answer is lost counts too
		Then:       "SQS moves the message to the dead-letter queue",
		Setting:    fmt.Sprintf("maxReceiveCount %d of queue %s", most, s.queue.Name),
	}
}

// attempt names a request for messages of a FIFO queue. SQS answers the same attempt
// with the same messages, so that those of a lost answer do not block their groups.
type attempt struct {
	id    string
	begun time.Time
}

// receive requests messages whenever the pipeline has taken those before and, unless
// always is true, while there are many.
func (s *Source) receive(ctx context.Context, always bool) {
	var try attempt
	pause := time.Duration(0)
	for s.inbox.Await(ctx, func() bool { return s.inbox.Empty() && (always || s.busy) }) {
		err := s.fetch(ctx, &try)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			s.trouble.Store(nil)
			pause = 0
			continue
		}
		s.trouble.Store(&err)
		pause = min(max(2*pause, 50*time.Millisecond), 2*time.Second)
		_ = retry.Sleep(ctx, pause)
	}
}

// fetch requests one batch of messages.
func (s *Source) fetch(ctx context.Context, try *attempt) error {
	ctx, cancel := context.WithTimeout(ctx, longPoll*time.Second+requestTimeout)
	defer cancel()
	in := &awssqs.ReceiveMessageInput{
		QueueUrl: &s.queue.URL, MaxNumberOfMessages: batch, WaitTimeSeconds: longPoll, VisibilityTimeout: seconds(s.visibility),
		MessageAttributeNames:       []string{"All"},
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameAll},
	}
	if s.queue.FIFO {
		if time.Since(try.begun) > attemptLife {
			*try = attempt{rand.Text(), time.Now()}
		}
		in.ReceiveRequestAttemptId = &try.id
	}
	out, err := s.queue.api.ReceiveMessage(ctx, in, s.queue.use)
	if _, answered := errors.AsType[smithy.APIError](err); err == nil || answered {
		*try = attempt{}
	}
	if err != nil {
		return err
	}
	s.offer(out.Messages)
	return nil
}

// seconds rounds up.
func seconds(d time.Duration) int32 { return int32((d + time.Second - 1) / time.Second) }

// offer makes messages readable.
func (s *Source) offer(list []types.Message) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	for i := range list {
		m := message(s.queue.Name, &list[i])
		s.place++
		h := &held{
			handle: *list[i].ReceiptHandle, place: s.place, first: now, due: now.Add(s.visibility),
		}
		s.enter(h, &m, s.limit.Check(m.Origin.Delivery))
	}
	s.busy = len(list) == batch
	s.inbox.Changed()
}

// enter makes a message readable in the partition of its group. exhausted says why SQS
// may not deliver it again, or is nil. Such a message is parked, and belongs to no group.
// s.mu is held.
func (s *Source) enter(h *held, m *semel.Message, exhausted error) {
	partition := s.standard
	if s.queue.FIFO && exhausted == nil {
		id := string(m.RecordKey)
		g := s.groups[id]
		if g == nil {
			g = &group{id: id, partition: pipeline.NewPartition(s.queue.Name + "/" + id)}
			s.groups[id] = g
		}
		g.held++
		h.group, partition = g, g.partition
	}
	h.item = &pipeline.Item{Partition: partition, Ref: h, Message: *m, Err: exhausted}
	s.held[h] = struct{}{}
	s.inbox.Put(h.item)
}

// Read implements pipeline.Source. While SQS cannot be reached, it waits.
func (s *Source) Read(ctx context.Context) ([]*pipeline.Item, error) { return s.inbox.Read(ctx) }

// beat extends the visibility of messages, until ctx ends, before half of it is left.
func (s *Source) beat(ctx context.Context) {
	ticker := time.NewTicker(s.visibility / 6)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		var list []*held
		s.mu.Lock()
		for h := range s.held {
			if !h.gone && time.Until(h.due) < s.visibility/2 {
				list = append(list, h)
			}
		}
		s.mu.Unlock()
		// A call that fails is repeated at the next tick.
		_ = s.hide(ctx, list, func(h *held) time.Duration { return min(s.visibility, visibilityLimit-time.Since(h.first)) })
	}
}

// hide sets how long SQS hides messages from now on. It returns the first error.
func (s *Source) hide(ctx context.Context, list []*held, how func(h *held) time.Duration) error {
	var first failure
	inBatches(slices.Collect(slices.Chunk(list, batch)), func(part []*held) { first.set(s.hideBatch(ctx, part, how)) })
	return first.get()
}

// failure keeps the first of several errors.
type failure struct {
	mu  sync.Mutex
	err error
}

func (f *failure) set(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = cmp.Or(f.err, err)
}

func (f *failure) get() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

func (s *Source) hideBatch(ctx context.Context, part []*held, how func(h *held) time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	now := time.Now()
	in := &awssqs.ChangeMessageVisibilityBatchInput{QueueUrl: &s.queue.URL}
	due := make([]time.Time, len(part))
	for i, h := range part {
		d := max(how(h), 0)
		due[i] = now.Add(d)
		in.Entries = append(in.Entries, types.ChangeMessageVisibilityBatchRequestEntry{Id: entryID(i), ReceiptHandle: &h.handle, VisibilityTimeout: seconds(d)})
	}
	out, err := s.queue.api.ChangeMessageVisibilityBatch(ctx, in, s.queue.use)
	if err != nil {
		return err
	}
	for _, done := range out.Successful {
		if i := entryOf(done.Id, part); i >= 0 {
			s.mu.Lock()
			part[i].due = due[i]
			s.mu.Unlock()
		}
	}
	for _, failed := range out.Failed {
		i := entryOf(failed.Id, part)
		switch {
		case i < 0:
		case expired(&failed):
			s.lose(part[i])
		default:
			err = cmp.Or(err, entryError(&failed))
		}
	}
	return err
}

func entryID(i int) *string {
	id := strconv.Itoa(i)
	return &id
}

// entryOf returns the index of an entry, or -1.
func entryOf[T any](id *string, part []T) int {
	if id == nil {
		return -1
	}
	i, err := strconv.Atoi(*id)
	if err != nil || i < 0 || i >= len(part) {
		return -1
	}
	return i
}

// expired reports whether SQS has given the message to another process, or has it for
// one.
func expired(e *types.BatchResultErrorEntry) bool {
	switch code(deref(e.Code)) {
	case "ReceiptHandleIsInvalid", "MessageNotInflight", "InvalidParameterValue":
		return true
	}
	return false
}

func deref(text *string) string {
	if text == nil {
		return ""
	}
	return *text
}

func entryError(e *types.BatchResultErrorEntry) error {
	return &smithy.GenericAPIError{Code: code(deref(e.Code)), Message: deref(e.Message)}
}

// lose notes that a message comes again, perhaps to another process. In a FIFO queue
// the messages behind it go back too, because they must not be processed before it.
func (s *Source) lose(h *held) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.gone = true; h.group != nil {
		s.leave(context.Background(), h.group, 0)
	}
}

// drop forgets messages.
func (s *Source) drop(list []*held) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range list {
		s.forget(h)
	}
}

// forget forgets a message. A group without messages has no partition. s.mu is held.
func (s *Source) forget(h *held) {
	if _, ok := s.held[h]; !ok {
		return
	}
	delete(s.held, h)
	if g := h.group; g != nil {
		if g.held--; g.held == 0 && s.groups[g.id] == g {
			delete(s.groups, g.id)
		}
	}
}

// Ack implements pipeline.Source. It deletes messages. A message whose visibility has
// ended cannot be deleted by this process. It comes again and is a duplicate.
func (s *Source) Ack(ctx context.Context, items []*pipeline.Item) error {
	list := make([]*held, 0, len(items))
	s.mu.Lock()
	for _, it := range items {
		h := it.Ref.(*held)
		if _, ok := s.held[h]; ok { // otherwise an earlier Ack has deleted it
			list = append(list, h)
		}
	}
	s.mu.Unlock()
	var first failure
	inBatches(slices.Collect(slices.Chunk(list, batch)), func(part []*held) { first.set(s.deleteBatch(ctx, part)) })
	if err := first.get(); err != nil {
		return fmt.Errorf("sqs: acknowledge: %w", err)
	}
	return nil
}

func (s *Source) deleteBatch(ctx context.Context, part []*held) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	in := &awssqs.DeleteMessageBatchInput{QueueUrl: &s.queue.URL}
	for i, h := range part {
		in.Entries = append(in.Entries, types.DeleteMessageBatchRequestEntry{Id: entryID(i), ReceiptHandle: &h.handle})
	}
	out, err := s.queue.api.DeleteMessageBatch(ctx, in, s.queue.use)
	if err != nil {
		return err
	}
	left := map[int]bool{}
	for _, failed := range out.Failed {
		if i := entryOf(failed.Id, part); i >= 0 && !expired(&failed) {
			left[i] = true
			err = cmp.Or(err, entryError(&failed))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, h := range part {
		if !left[i] {
			s.forget(h)
		}
	}
	return err
}

// Return implements pipeline.Source. A message of a FIFO queue goes back with the
// messages of its group that are behind it. If the queue has a dead-letter queue, the
// messages stay here and are offered again, because each delivery counts.
func (s *Source) Return(ctx context.Context, items []*pipeline.Item, delay time.Duration) error {
	var back, stay []*held
	s.mu.Lock()
	limited := s.limit.Deliveries > 0
	for _, it := range items {
		switch h := it.Ref.(*held); {
		case h.group != nil:
			s.leave(context.WithoutCancel(ctx), h.group, delay)
		case limited:
			stay = append(stay, h)
		default:
			back = append(back, h)
		}
	}
	s.mu.Unlock()
	s.again(stay, delay)
	return s.giveBack(ctx, back, delay)
}

// giveBack makes the first message visible after a delay. The others follow
// immediately in a FIFO queue, where the first one blocks them, and otherwise after
// the same delay.
func (s *Source) giveBack(ctx context.Context, list []*held, delay time.Duration) error {
	if len(list) == 0 {
		return nil
	}
	delay = min(delay, visibilityLimit/2)
	err := s.hide(ctx, list, func(h *held) time.Duration {
		if s.queue.FIFO && h != list[0] {
			return 0
		}
		return delay
	})
	s.drop(list) // if SQS was not reached, they come again when their visibility ends
	if err != nil {
		return fmt.Errorf("sqs: return: %w", err)
	}
	return nil
}

// again offers messages once more after a delay.
func (s *Source) again(list []*held, delay time.Duration) {
	if len(list) == 0 {
		return
	}
	time.AfterFunc(delay, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.closed {
			return
		}
		for _, h := range list {
			s.forget(h)
			s.enter(h, &h.item.Message, nil)
			h.item.Returned = true
		}
		s.inbox.Changed()
	})
}

// leave gives all messages of a group back, or keeps them for a later try, once those
// that are being processed are settled. s.mu is held.
func (s *Source) leave(ctx context.Context, g *group, delay time.Duration) {
	if s.groups[g.id] != g || s.closed {
		return // it does already, or all messages go back
	}
	delete(s.groups, g.id)
	s.running.Go(func() {
		if err := g.partition.Close(ctx); err != nil { // the pipeline drops the messages that wait
			return
		}
		var list []*held
		s.mu.Lock()
		s.inbox.Remove(func(it *pipeline.Item) bool { return it.Ref.(*held).group == g })
		limited := s.limit.Deliveries > 0
		for h := range s.held {
			if h.group == g {
				list = append(list, h)
			}
		}
		s.mu.Unlock()
		slices.SortFunc(list, func(a, b *held) int { return cmp.Compare(a.place, b.place) })
		if limited && !slices.ContainsFunc(list, func(h *held) bool { return h.gone }) {
			s.again(list, delay)
			return
		}
		_ = s.giveBack(ctx, list, delay) // if SQS was not reached, they come again later
	})
}

// Close implements pipeline.Source. SQS delivers unsettled messages again immediately,
// perhaps to another process.
func (s *Source) Close(ctx context.Context) error {
	s.stop()
	s.running.Wait()
	s.mu.Lock()
	s.closed = true
	unsettled := slices.Collect(maps.Keys(s.held))
	s.inbox.Take()
	s.mu.Unlock()
	_ = s.hide(ctx, unsettled, func(*held) time.Duration { return 0 }) // without it they come again later
	return nil
}

// Ready implements doctor.Readier. It asks nothing, because a request for messages is
// always under way.
func (s *Source) Ready(context.Context) error {
	if err := s.trouble.Load(); err != nil {
		return fmt.Errorf("sqs: %w", *err)
	}
	return nil
}

// WaitsFor implements pipeline.Waiter.
func (s *Source) WaitsFor(ctx context.Context) (what string, ends bool) {
	if err := s.Ready(ctx); err != nil {
		return "an answer of SQS: " + err.Error(), false
	}
	return "", false
}

// Lag returns the backlog, as in pipeline.SourceTraits. It counts the messages that wait,
// are delayed, or are being processed, as SQS estimates them.
func (s *Source) Lag(ctx context.Context) ([]pipeline.Lag, error) {
	attributes, err := s.queue.mustAttributes(ctx)
	if Denied(err) {
		err = errors.Join(err, errors.ErrUnsupported)
	}
	if err != nil {
		return nil, fmt.Errorf("sqs: %w", err)
	}
	s.follow(attributes)
	lag := pipeline.Lag{Source: s.queue.Name, Bytes: pipeline.UnknownLag}
	for _, name := range []types.QueueAttributeName{
		types.QueueAttributeNameApproximateNumberOfMessages, types.QueueAttributeNameApproximateNumberOfMessagesNotVisible, types.QueueAttributeNameApproximateNumberOfMessagesDelayed,
	} {
		n, err := strconv.ParseInt(attributes[string(name)], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("sqs: attribute %s: %w", name, err)
		}
		lag.Messages += n
	}
	return []pipeline.Lag{lag}, nil
}
