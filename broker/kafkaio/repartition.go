package kafkaio

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/semel-dev/semel/internal/invalid"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Repartition is a stage before the one that decides. It copies the records of
// all inputs to a topic in which copies of a key are in one partition, whatever
// their record keys are and whoever wrote them. Copies and offsets are one
// transaction, as in the stage that decides, so nothing is lost or added between
// the two. What is decided, written and put aside is the record as it was first:
// key, value, headers, time and origin.
//
// Records keep their order by id, and no longer by record key. With event time,
// records of several partitions are mixed: Grace has to cover how far they are
// apart.
type Repartition struct {
	// Topic is the topic between the stages. It is made if it is missing. What the
	// second stage has committed is deleted from it. No other pipeline may use it.
	// Defaults to Group and "-repartition".
	Topic string
	// Partitions is how many partitions the topic has, and how many it gets if it
	// is made; it cannot be changed as long as keys are remembered. Defaults to
	// what is there, or to as many as the input with the most.
	Partitions int
}

func (r *Repartition) withDefaults(group string) *Repartition {
	set := *r
	if set.Topic == "" {
		set.Topic = group + repartitionSuffix
	}
	return &set
}

func (r *Repartition) validate(o *TransactorOptions, wrong *invalid.List) {
	if r.Partitions < 0 {
		wrong.Add("Repartition.Partitions: %d is below 0", r.Partitions)
	}
	if slices.Contains(append([]string{o.Output, o.Parked, o.Changelog}, o.Inputs...), r.Topic) {
		wrong.Add("Repartition.Topic: %s is another topic of the pipeline; it needs one of its own", r.Topic)
	}
	if o.Redo {
		wrong.Add("Redo: with Repartition offsets that are set back are those of another group, and what it copies again are new records")
	}
}

// repartitionSuffix is behind the names of the group, the producers and the
// topic of the first stage.
const repartitionSuffix = "-repartition"

// RepartitionGroup returns the group of the first stage of a pipeline that has two, of
// which the second reads as group.
func RepartitionGroup(group string) string { return group + repartitionSuffix }

// copyGroup is the group of the first stage.
func (o *TransactorOptions) copyGroup() string { return RepartitionGroup(o.Group) }

// reads returns the topics whose records are decided.
func (o *TransactorOptions) reads() []string {
	if o.Repartition != nil {
		return []string{o.Repartition.Topic}
	}
	return o.Inputs
}

// start says where partitions are read from that are decided. Whatever the first
// stage has copied must be read.
func (o *TransactorOptions) start() []kgo.Opt {
	if o.Repartition != nil {
		return []kgo.Opt{kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()), kgo.ConsumeResetOffset(kgo.NoResetOffset())}
	}
	return o.Reset.options()
}

// headerOrigin is the last header of a copy. It says what the record was. All
// its numbers are little-endian:
//
//	version (1), flags (1): 1 is a key that is not null
//	length of the topic's name (2), partition (4), offset (8)
//	time (8): milliseconds since the Unix epoch
//	topic, key
const (
	headerOrigin   = "semel-origin"
	originVersion  = 1
	originHasKey   = 1
	originHeadSize = 24
)

// wrap makes a record its copy for a topic: with the id as its key, which is
// null if there is none, and the present as its time, so that the broker does
// not take an old record for one that can go.
func wrap(r *kgo.Record, topic string, partition int32, id []byte, now time.Time) {
	data := make([]byte, originHeadSize, originHeadSize+len(r.Topic)+len(r.Key)+len(id))
	data[0] = originVersion
	if r.Key != nil {
		data[1] = originHasKey
	}
	binary.LittleEndian.PutUint16(data[2:], uint16(len(r.Topic)))
	binary.LittleEndian.PutUint32(data[4:], uint32(r.Partition))
	binary.LittleEndian.PutUint64(data[8:], uint64(r.Offset))
	binary.LittleEndian.PutUint64(data[16:], uint64(r.Timestamp.UnixMilli()))
	data = append(append(data, r.Topic...), r.Key...)
	end := len(data)
	r.Key = nil
	if len(id) > 0 {
		r.Key = append(data, id...)[end:]
	}
	r.Headers = append(slices.Clip(r.Headers), kgo.RecordHeader{Key: headerOrigin, Value: data[:end:end]})
	r.Topic, r.Partition, r.Timestamp = topic, partition, now
}

// origins makes copies what they were. One goroutine uses it.
type origins struct {
	topics map[string]string // so that names are not made anew
}

// unwrap is the reverse of wrap. A record that is no copy stays as it is.
func (o *origins) unwrap(r *kgo.Record) {
	last := len(r.Headers) - 1
	if last < 0 || r.Headers[last].Key != headerOrigin {
		return
	}
	data := r.Headers[last].Value
	if len(data) < originHeadSize || data[0] != originVersion {
		return
	}
	rest := data[originHeadSize:]
	name := int(binary.LittleEndian.Uint16(data[2:]))
	if len(rest) < name {
		return
	}
	topic, ok := o.topics[string(rest[:name])]
	if !ok {
		if o.topics == nil {
			o.topics = map[string]string{}
		}
		topic = string(rest[:name])
		o.topics[topic] = topic
	}
	r.Topic = topic
	r.Partition = int32(binary.LittleEndian.Uint32(data[4:]))
	r.Offset = int64(binary.LittleEndian.Uint64(data[8:]))
	r.Timestamp = time.UnixMilli(int64(binary.LittleEndian.Uint64(data[16:])))
	if r.Key = nil; data[1]&originHasKey != 0 {
		r.Key = rest[name:]
	}
	if r.Headers = r.Headers[:last]; last == 0 {
		r.Headers = nil
	}
}
