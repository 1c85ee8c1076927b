package kafkatxn

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/internal/changes"
	"github.com/semel-dev/semel/internal/localcopy"
)

// checkWindows creates the topic of an input's windows if it is missing, and refuses an
// unsuitable one.
func (t *Transactor) checkWindows(ctx context.Context, adm *kadm.Client, input string, partitions int) error {
	name := t.opts.windowsOf(input)
	topics, err := adm.ListTopics(ctx, name)
	if err != nil {
		return fmt.Errorf("kafka: list topics: %w", err)
	}
	topic := topics[name]
	if errors.Is(topic.Err, kerr.UnknownTopicOrPartition) {
		read, err := t.hasRead(ctx, adm, t.opts.Group, input)
		if err != nil {
			return err
		}
		if read != "" {
			return fmt.Errorf("kafka: group %s has read %s, and topic %s, which holds its open windows or held records, %w: they would lack the messages that were read. Use a new group, or, to begin without them, create it: kafka-topics.sh --create --topic %s --partitions %d --config cleanup.policy=delete --config retention.bytes=-1 --config retention.ms=-1; and %s",
				t.opts.Group, input, name, errNoTopic, name, partitions, t.acceptLoss(input))
		}
		settings := map[string]*string{"cleanup.policy": kadm.StringPtr("delete"), "retention.bytes": kadm.StringPtr("-1"), "retention.ms": kadm.StringPtr("-1"),
			"segment.bytes": kadm.StringPtr(strconv.Itoa(repartitionSegment))} // the broker frees whole segments
		if _, err := adm.CreateTopic(ctx, int32(partitions), -1, settings, name); err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
			return fmt.Errorf("kafka: create topic %s for windows: %w", name, err)
		}
		return kerr.LeaderNotAvailable // check again
	}
	if topic.Err != nil {
		return fmt.Errorf("kafka: topic %s: %w", name, topic.Err)
	}
	t.stateTopic[input] = topic.ID
	if len(topic.Partitions) != partitions {
		return fmt.Errorf("kafka: %s has %d partitions, and topic %s, which holds its open windows or held records, has %d: use a new group, or a new input with the old number of partitions: %w",
			input, partitions, name, len(topic.Partitions), semel.ErrInvalidRequest)
	}
	configs, err := cluster.TopicSettings(ctx, adm, name)
	if err != nil {
		return err
	}
	has := cluster.Settings(configs, name)
	if policy := has["cleanup.policy"]; strings.Contains(policy, "compact") {
		return fmt.Errorf("kafka: topic %s has cleanup.policy %s, and holds windows in records without keys: only \"delete\" keeps them: %w", name, policy, semel.ErrInvalidRequest)
	}
	for _, setting := range []string{"retention.ms", "retention.bytes"} {
		if keeps, err := strconv.ParseInt(has[setting], 10, 64); err == nil && keeps >= 0 {
			return fmt.Errorf("kafka: topic %s has %s %d, and open windows or held records would be lost: set it to -1; Semel deletes what is not needed: %w", name, setting, keeps, semel.ErrInvalidRequest)
		}
	}
	return nil
}

// windowPositions adds where to read the windows of parts from. If their changelog has lost
// records, the windows are dropped.
func (t *Transactor) windowPositions(ctx context.Context, parts []*part, from map[string]map[int32]kgo.Offset) error {
	adm := t.adm()
	var names []string
	for _, topic := range t.opts.reads() {
		names = append(names, t.opts.windowsOf(topic))
	}
	first, err := adm.ListStartOffsets(ctx, names...)
	last, err2 := adm.ListEndOffsets(ctx, names...)
	if err := errors.Join(err, err2, first.Error(), last.Error()); err != nil {
		return fmt.Errorf("kafka: windows: %w", err)
	}
	if err := cluster.Each(parts, func(p *part) (err error) {
		if p.slot.windows == nil {
			p.slot.windows, err = t.loadWindows(p.id)
		}
		return err
	}); err != nil {
		return err
	}
	for _, p := range parts {
		name := t.opts.windowsOf(p.id.Topic)
		start, _ := first.Lookup(name, p.id.Number)
		end, _ := last.Lookup(name, p.id.Number)
		ws := p.slot.windows
		at := max(ws.position-1, start.Offset)
		if ws.verify = ws.position > 0 && ws.position <= end.Offset && at == ws.position-1 && ws.whole(start.Offset); !ws.verify {
			// What it had read is gone, or the changelog or the copy has lost records. So it
			// begins at the start.
			if err := t.forgetWindows(p); err != nil {
				return err
			}
			at = start.Offset
		}
		if from[name] == nil {
			from[name] = map[int32]kgo.Offset{}
		}
		from[name][p.id.Number] = kgo.NewOffset().At(at)
	}
	return nil
}

// loadWindows returns the windows of a partition from the local copy. Records that it
// cannot apply are read from the brokers, which refuse them or not.
func (t *Transactor) loadWindows(id cluster.Partition) (*windowState, error) {
	if t.opts.State.Dir == "" {
		return t.newWindows(nil), nil
	}
	dir := filepath.Join(t.opts.State.Dir, t.opts.windowsOf(id.Topic)+"-"+strconv.Itoa(int(id.Number)))
	log := localcopy.New(t.opts.files, dir, ".state", t.stateTopic[id.Topic])
	if t.opts.fileSize > 0 {
		log.SetFileSize(t.opts.fileSize)
	}
	ws := t.newWindows(log)
	err := log.Open(nil, func(value []byte, position int64, place localcopy.Place) (int64, error) {
		c, err := ws.Parse(value)
		if err != nil || c.Definition != t.definition || c.Topic != t.topics[id.Topic] {
			return 0, localcopy.ErrEnd
		}
		ws.Apply(&c, position-1, place)
		ws.passed(value, position)
		return position - 1, nil
	})
	if err != nil {
		return nil, err
	}
	ws.shorten()
	return ws, nil
}

// whole reports whether the copy on disk has not failed, and lacks no record from the start
// of the changelog on.
func (ws *windowState) whole(start int64) bool {
	return ws.log == nil || ws.log.Err() == nil && ws.log.From() <= start
}

// forgetWindows replaces a part's windows by an empty state.
func (t *Transactor) forgetWindows(p *part) error {
	log := p.slot.windows.log
	p.slot.windows = t.newWindows(log)
	p.slot.windowsCut.Store(0)
	if log == nil {
		return nil
	}
	return log.Clear()
}

// applyWindows applies records of the changelog up to the barrier, and reports whether it
// was reached. It drops a state that the changelog contradicts, because brokers may lose
// acknowledged records.
func (t *Transactor) applyWindows(ctx context.Context, p *part, records []*kgo.Record, nonce changes.ID) (reached bool, err error) {
	ws := p.slot.windows
	for _, r := range records {
		if ws.verify && (r.Offset != ws.position-1 || ws.last != crc32.Checksum(r.Value, localcopy.Castagnoli)) {
			return false, errors.Join(fmt.Errorf("kafka: %s/%d at %d is another record than before: %w", r.Topic, r.Partition, r.Offset, errAgain), t.forgetWindows(p))
		}
		ws.verify = false
		if r.Offset < ws.position {
			continue
		}
		c, err := ws.Parse(r.Value)
		switch {
		case err != nil:
			return false, fmt.Errorf("kafka: %s/%d at %d: %w: start the version of Semel that wrote it, or use a new group: %w", r.Topic, r.Partition, r.Offset, err, semel.ErrInvalidRequest)
		case c.Nonce != changes.ID{}:
			if c.Nonce == nonce {
				p.slot.measure()
				return true, t.writeWindowsLog(ws)
			}
			continue
		case c.Definition != t.definition:
			return false, fmt.Errorf("kafka: topic %s holds windows or records that were made otherwise than by %q: their keys, sizes, times or values do not fit. Restore the former settings, or use a new group: %w",
				r.Topic, t.opts.stateText(), semel.ErrInvalidRequest)
		}
		if c.Topic != t.topics[p.id.Topic] {
			if err := t.checkKeysOf(ctx, p.id.Topic, c.Topic); errors.Is(err, semel.ErrInvalidRequest) {
				return false, fmt.Errorf("kafka: topic %s holds windows of another topic than %s: use a new group: %w", r.Topic, p.id.Topic, semel.ErrInvalidRequest)
			} else if err != nil {
				return false, err
			}
		}
		ws.Apply(&c, r.Offset, ws.add(r))
		ws.mix.Forget()
		ws.passed(r.Value, r.Offset+1)
	}
	ws.shorten()
	return false, t.writeWindowsLog(ws)
}

// windowsBarrier returns a barrier for the changelog.
func (t *Transactor) windowsBarrier(nonce, topic changes.ID) []byte {
	if t.opts.Keep != nil {
		return changes.Barrier(changes.Kept, nonce, topic)
	}
	return changes.Barrier(changes.Windows, nonce, topic)
}
