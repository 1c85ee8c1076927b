package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/doctor"
)

// right is a permission of a Kafka user.
type right struct {
	resource, name string // as kafka-acls.sh names them
	operation      kadm.ACLOperation
	// cost is what happens without it. optional says that the pipeline does its work.
	cost     string
	optional bool
}

func (r *right) String() string {
	return fmt.Sprintf("%s on %s %s", operationName(r.operation), r.resource, r.name)
}

// operationName returns the name of an operation as kafka-acls.sh has it.
func operationName(op kadm.ACLOperation) string {
	name := ""
	for part := range strings.SplitSeq(strings.ToLower(op.String()), "_") {
		if part != "" {
			name += strings.ToUpper(part[:1]) + part[1:]
		}
	}
	return name
}

// remedy returns the command that grants the right.
func (r *right) remedy() string {
	name := r.name
	if r.resource == transactionalID {
		name, _, _ = strings.Cut(name, "/")
		name += "/ --resource-pattern-type prefixed"
	}
	return fmt.Sprintf("kafka-acls.sh --bootstrap-server ADDRESS --add --allow-principal User:NAME --operation %s --%s %s", operationName(r.operation), r.resource, name)
}

// Kinds of resources, as kafka-acls.sh names them.
const topicResource, groupResource, transactionalID = "topic", "group", "transactional-id"

// needed returns the rights that the pipeline uses.
func (e *examination) needed() (list []right) {
	topic := func(name string, optional bool, cost string, operations ...kadm.ACLOperation) {
		for _, op := range operations {
			if name != "" {
				list = append(list, right{topicResource, name, op, cost, optional})
			}
		}
	}
	o := &e.opts
	for _, name := range o.Inputs {
		topic(name, false, "nothing is read from it", kadm.OpRead)
	}
	for _, name := range e.outputs {
		topic(name, false, "nothing is written to it", kadm.OpWrite)
	}
	topic(o.Parked, false, "no message can be parked, and the pipeline stops at the first one", kadm.OpWrite)
	for _, name := range o.Changelogs {
		topic(name, false, "keys cannot be kept", kadm.OpRead, kadm.OpWrite)
		if o.EventTime {
			topic(name, true, "keys that have expired stay in the topic, which grows", kadm.OpDelete)
		}
	}
	for _, name := range o.States {
		topic(name, false, "the state of aggregate or key.keep cannot be kept", kadm.OpRead, kadm.OpWrite)
		topic(name, true, "what is closed stays in the topic, which grows", kadm.OpDelete)
	}
	topic(o.Repartition, false, "records cannot be copied to their partitions", kadm.OpRead, kadm.OpWrite)
	topic(o.Repartition, true, "copies that were decided stay in the topic, which grows", kadm.OpDelete)
	for i := range o.Tables {
		topic(o.Tables[i].Topic, false, "no record is joined, and the pipeline ends", kadm.OpRead)
	}
	for group := range e.readers() {
		list = append(list, right{groupResource, group, kadm.OpRead, "nothing is read", false})
	}
	if o.Transactional && o.TransactionalID != "" {
		list = append(list, right{transactionalID, o.TransactionalID, kadm.OpWrite, "no transaction can begin", false})
	}
	return list
}

// rights checks every right that the pipeline uses, without using it.
func (e *examination) rights(ctx context.Context) error {
	lacks, unknown := 0, error(nil)
	missing := map[string]bool{}
	for _, r := range e.needed() {
		has, err := e.has(ctx, &r)
		if err != nil {
			unknown = errors.Join(unknown, fmt.Errorf("%s: %w", &r, err))
			continue
		}
		if !has {
			lacks++
			severity := doctor.Broken
			if r.optional {
				severity = doctor.Warning
			}
			e.note(severity, r.resource+" "+r.name, "the user lacks the right "+operationName(r.operation), r.cost, r.remedy())
		}
		if r.resource == topicResource && e.isMade(r.name) {
			missing[r.name] = errors.Is(e.meta.Topics[r.name].Err, kerr.UnknownTopicOrPartition)
		}
	}
	for name, absent := range missing {
		if !absent {
			continue
		}
		may, err := e.mayCreate(ctx, name)
		if err != nil {
			unknown = errors.Join(unknown, fmt.Errorf("the right Create on topic %s: %w", name, err))
		} else if !may {
			lacks++
			r := right{topicResource, name, kadm.OpCreate, "", false}
			e.note(doctor.Broken, "topic "+name, "it does not exist, and the user lacks the right Create", "the pipeline does not start", r.remedy()+", or create it")
		}
	}
	switch {
	case unknown != nil:
		e.note(doctor.Notice, "rights", "not checked completely: "+unknown.Error(), "a missing right may be noticed only by run", "")
	case lacks == 0:
		e.note(doctor.Fine, "rights", "all that the pipeline uses", "", "")
	}
	return nil
}

// has reports whether the user has a right.
func (e *examination) has(ctx context.Context, r *right) (bool, error) {
	switch r.resource {
	case groupResource:
		return e.mayJoin(ctx, r.name)
	case transactionalID:
		return e.mayBegin(ctx, r.name)
	}
	return e.may(r.name, r.operation), nil
}

// may reports whether the user has a right on a topic, as far as brokers say.
func (e *examination) may(topic string, operation kadm.ACLOperation) bool {
	t := e.meta.Topics[topic]
	switch {
	case errors.Is(t.Err, kerr.TopicAuthorizationFailed):
		return false
	case t.Err != nil, len(t.AuthorizedOperations) == 0: // it is missing, or the brokers are too old to say
		return true
	}
	return slices.Contains(t.AuthorizedOperations, operation) || slices.Contains(t.AuthorizedOperations, kadm.OpAll)
}

// mayJoin asks as a member that no group has, which brokers refuse after they have checked
// the right.
func (e *examination) mayJoin(ctx context.Context, group string) (bool, error) {
	req := kmsg.NewPtrHeartbeatRequest()
	req.Group, req.MemberID, req.Generation = group, "semel-doctor", -1
	answer, err := req.RequestWith(ctx, e.client)
	if err == nil {
		err = kerr.ErrorForCode(answer.ErrorCode)
	}
	switch {
	case errors.Is(err, kerr.GroupAuthorizationFailed):
		return false, nil
	case err == nil, cluster.IsAny(err, kerr.UnknownMemberID, kerr.IllegalGeneration, kerr.GroupIDNotFound, kerr.RebalanceInProgress, kerr.InvalidGroupID):
		return true, nil
	}
	return false, err
}

// mayBegin asks to abort the transaction of a producer that does not exist, which brokers
// refuse after they have checked the right.
func (e *examination) mayBegin(ctx context.Context, id string) (bool, error) {
	req := kmsg.NewPtrEndTxnRequest()
	req.TransactionalID, req.ProducerID, req.ProducerEpoch = id, 1<<62, 0
	answer, err := req.RequestWith(ctx, e.client)
	if err == nil {
		err = kerr.ErrorForCode(answer.ErrorCode)
	}
	switch {
	case errors.Is(err, kerr.TransactionalIDAuthorizationFailed):
		return false, nil
	case err == nil, cluster.IsAny(err, kerr.InvalidProducerIDMapping, kerr.InvalidProducerEpoch, kerr.ProducerFenced, kerr.InvalidTxnState, kerr.UnknownProducerID, kerr.ConcurrentTransactions):
		return true, nil
	}
	return false, err
}

// mayCreate asks brokers to check the creation of a topic, without doing it.
func (e *examination) mayCreate(ctx context.Context, name string) (bool, error) {
	answers, err := e.ValidateCreateTopics(ctx, 1, -1, nil, name)
	if err == nil {
		err = answers[name].Err
	}
	if isDenied(err) {
		return false, nil
	}
	return err == nil || errors.Is(err, kerr.TopicAlreadyExists), ignore(err, kerr.TopicAlreadyExists)
}

func ignore(err, known error) error {
	if errors.Is(err, known) {
		return nil
	}
	return err
}

// isDenied reports whether an error means that the user lacks a right.
func isDenied(err error) bool {
	return cluster.IsAny(err, kerr.TopicAuthorizationFailed, kerr.GroupAuthorizationFailed, kerr.ClusterAuthorizationFailed, kerr.TransactionalIDAuthorizationFailed)
}
