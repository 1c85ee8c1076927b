package explain

import (
	"fmt"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/stream"
)

// crashes lists the moments in the life of a message at which the process can
// die, followed by the moments at which something else can fail.
func (e *explainer) crashes() []Crash {
	var list []Crash
	add := func(at, then string) { list = append(list, Crash{At: at, Then: then}) }
	switch e.mode {
	case config.SourceIsSink:
		e.inKafka(add)
	case config.SameTransaction:
		add("before the transaction", e.source.Again+"; nothing has happened")
		add("in the transaction", "the database rolls back key and row; "+e.source.Again+" and is fresh")
		add("at the commit, if its answer is lost", "Semel looks up the key on another connection: its row shows whether the commit happened")
		add("after the commit, before the acknowledgement", e.source.Again+"; it is a duplicate, and is acknowledged without effect")
	case config.Checkpointed:
		add("before the checkpoint", "on the next start the output is cut to the length of the last checkpoint: "+e.source.Again+" and is fresh")
		add("at the checkpoint", "key, line and position are one record, which is complete or absent")
		add("after the checkpoint, before the acknowledgement", e.source.Again+"; it is a duplicate, and is acknowledged without effect")
	case config.Lossy:
		if e.observes(add) {
			break
		}
		add("before the effect", e.source.Again+"; nothing has happened")
		add("after the effect, before the filter has the key", e.source.Again+" and has its effect again")
		add("after that, before the acknowledgement", e.source.Again+"; it is a duplicate, and is acknowledged without effect")
	case config.Direct:
		add("before the delivery", e.source.Again+"; nothing has happened")
		add("after the delivery, before the row is removed from the outbox", e.source.Again+", and the message is delivered again, under the same id: a consumer that remembers ids drops it")
		add("after that", "nothing is left to do")
	case config.TwoPhase:
		e.twoPhase(add)
	}
	e.expressions(add)
	died := len(list)
	switch e.mode {
	case config.SourceIsSink:
		e.failuresInKafka(add)
	case config.Direct:
		add("the database does not answer", "the pipeline waits; a message that was delivered is still in the outbox, and is delivered again if another process takes over")
		e.failures(add)
	default:
		add("after the acknowledgement", e.acknowledged())
		died++
		e.failures(add)
	}
	for i := range list[died:] {
		list[died+i].Failure = true
	}
	return list
}

// expressions describes a crash around filter and map.
func (e *explainer) expressions(add func(at, then string)) {
	p := e.pipeline
	if p.Filter == "" && p.Map == "" {
		return
	}
	add("while "+e.evaluated()+" evaluated", "nothing has happened; "+e.source.Again+", and its outcome is the same, because an expression has no clock and no randomness")
	switch {
	case p.Filter == "":
	case e.mode == config.Direct:
		add("after the filter left the message out, before the row is removed from the outbox", e.source.Again+", and is left out again")
	case p.Observe:
		add("after the filter left the message out, before the acknowledgement", e.source.Again+", and is left out again")
	default:
		add("after the filter left the message out, before its key is remembered", e.source.Again+", and is left out again; its key is remembered in the same way as that of a delivered message")
	}
}

// evaluated names the expressions, with their verb.
func (e *explainer) evaluated() string {
	switch p := e.pipeline; {
	case p.Map == "":
		return "the filter is"
	case p.Filter == "":
		return "the map is"
	}
	return "filter and map are"
}

// acknowledged describes a crash after the acknowledgement.
func (e *explainer) acknowledged() string {
	after := e.source.AfterAck
	gets := after.Gets
	if e.pipeline.Observe {
		gets = "has its effect again all the same"
	}
	return after.Unsure + ": " + after.Again + " is a duplicate, and " + gets
}

// observes describes the outcome of a message in a pipeline that only observes.
// The outcome does not depend on the decision.
func (e *explainer) observes(add func(at, then string)) bool {
	if !e.pipeline.Observe {
		return false
	}
	add("before the effect", e.source.Again+"; nothing has happened")
	add("after the effect, before the acknowledgement", e.source.Again+" and has its effect again: the pipeline observes, and no decision keeps a message from its sink")
	return true
}

func (e *explainer) twoPhase(add func(at, then string)) {
	p := e.pipeline
	lease := schema.Duration(p.Lease)
	if e.observes(add) {
		return
	}
	add("before the claim", e.source.Again+"; nothing has happened")
	switch {
	case p.OnLeaseExpired == "hold":
		const held = "the key becomes unknown when its lease ends, and the message is parked; nothing runs until an operator resolves it: semel keys resolve --as done or absent"
		add("after the claim, before the effect", "after at most "+lease+" "+held)
		add("after the effect, before the completion", "the same, and no second effect by itself: after at most "+lease+" "+held)
	case e.decider.ClaimsEnd:
		add("after the claim, before the effect", e.source.Again+"; its claim ended with the process, so it is claimed again immediately, as attempt 1 with a higher token")
		add("after the effect, before the completion", "the same, and the effect repeats: with the same key, attempt 1 and a higher token")
	default:
		add("after the claim, before the effect", e.source.Again+", and waits until the lease ends, at most "+lease+"; then it is claimed again, as attempt 2 with a higher token")
		add("after the effect, before the completion", "the same, and the effect repeats: with the same key, attempt 2 and a higher token")
	}
	add("after the completion, before the acknowledgement", e.source.Again+"; it is a duplicate, and is acknowledged without effect")
}

// inKafka describes the life of a record in a transaction.
func (e *explainer) inKafka(add func(at, then string)) {
	if topic := e.source.Repartition; topic != "" {
		add("before or in the transaction that copies to "+topic, e.source.Again+"; only copies that were committed together with their offsets are read")
		add("between the stages", "the copy is in "+topic+" with its origin, and is decided when the second stage reads it; nothing is deleted there before")
	}
	add("before the transaction", e.source.Again+"; nothing has happened")
	if agg := e.pipeline.Aggregate; agg != nil {
		add("in the transaction", "the next process fences the dead one, and the broker aborts the transaction: no read_committed reader sees results, windows, keys or offsets; "+e.source.Again+" and is added to its window as before")
		add("at the commit, if its answer is lost", "the state is rebuilt from the committed records: results, windows, keys and offsets are committed together, or not at all")
		add("after the commit, before its window is closed", "the record is part of its window in the "+topics(e.windows())+"; if it is read again it is a duplicate, and counts once")
		if agg.Early > 0 {
			add("after an early result is written", "early results are in the same transactions; the next process may write one again, and the final result is still written once")
		}
		add("while results of closed windows are written", "each transaction records the last result that it writes: the next run writes the results after it, and repeats none")
		return
	}
	if e.pipeline.Holds() {
		add("in the transaction", "the next process fences the dead one, and the broker aborts the transaction: no read_committed reader sees outputs, held records, keys or offsets; "+e.source.Again+" and is held, or superseded, as before")
		add("at the commit, if its answer is lost", "the state is rebuilt from the committed records: outputs, held records, keys and offsets are committed together, or not at all")
		add("after the commit, while a record is held", "the record is in the "+topics(e.windows())+", and takes effect from there, or is superseded; it is not read again")
		add("while held records take effect", "each is written in the transaction that releases it: the next run writes those that are left, and repeats none")
		return
	}
	add("in the transaction", "the next process fences the dead one, and the broker aborts the transaction: no read_committed reader sees its outputs, keys or offsets; "+e.source.Again+" and is fresh")
	add("at the commit, if its answer is lost", "the state is rebuilt from the committed records: outputs, keys and offsets are committed together, or not at all")
	if keep := e.pipeline.Key.Keep; keep != nil {
		add("after the commit", "its version ("+keep.Newest.String()+") is in the "+topics(e.windows())+": an older or equal one is superseded, also after a restart")
		return
	}
	add("after the commit, before the local copy of the keys has it", "the copy is completed from the "+changelogs(e.pipeline)+" before the next decision")
}

// failuresInKafka describes failures other than a crash of a Kafka transaction.
func (e *explainer) failuresInKafka(add func(at, then string)) {
	reads := "the other instance reads the keys to their end before it decides"
	if e.pipeline.Transaction.Standby {
		reads = "the other instance has a copy of the keys, and reads the missing ones before it decides"
	}
	if e.pipeline.Aggregate != nil {
		reads += ", and also the open windows and the time up to which windows are closed"
		add("a member that lost its partitions closes windows", "it commits its offset with the results, and the brokers refuse both")
	}
	if e.pipeline.Holds() {
		reads += ", and also the held records and the time up to which records have taken effect"
		add("a member that lost its partitions writes held records", "it commits its offset with them, and the brokers refuse both")
	} else if e.pipeline.Key.Keep != nil {
		reads += ", and also the newest version of each key"
	}
	add("partitions move to another instance", "the open transaction aborts; "+reads)
	e.tableFailures(add)
	e.windowFailures(add)
	e.keepFailures(add)
	e.parked(add)
}

// waits says what happens to a record that waits for its row.
func (e *explainer) waits() string {
	others := "later ones with its id or record key wait behind it, and others continue; its offset is stored with the group's offset, so a crash loses nothing"
	if e.pipeline.Aggregate != nil || e.pipeline.Key.Keep != nil || e.source.Repartition != "" {
		others = "the other records wait too"
	}
	return "it waits until the table is read up to its present end (" + others + "); if the row is still missing, it is parked, with the reason row-missing"
}

// tableFailures describes what happens while rows are read, and to records without one.
func (e *explainer) tableFailures(add func(at, then string)) {
	for _, t := range e.pipeline.Tables {
		add("a partition comes to this process", "no record is decided before table "+t.Name+" ("+t.Topic+") is read up to its present end, so a join never goes back to an older row; the process waits for open transactions in that topic")
		then := map[string]string{
			"park": "it is parked, with the reason row-missing", "drop": "it is dropped, counted, and lost", "pass": "tables." + t.Name + " is not there, and has(tables." + t.Name + ") is false",
			"wait": e.waits(),
		}[config.MissingPolicy(t)]
		add("table "+t.Name+" has no row for a record", then+". A row is looked up when filter or map asks for it")
		if t.History > 0 {
			add("a record is older than the history of table "+t.Name, "it is parked as late, because the row of its time may be forgotten: former rows are kept for "+schema.Duration(t.History)+" (history)")
		}
		former := ""
		if t.History > 0 {
			former = ", and the same for each former row of the last " + schema.Duration(t.History)
		}
		add("the process restarts", "table "+t.Name+" is read again from the start of its topic before the first record is decided; its rows are in memory, and each takes its key, its value and about 120 bytes"+former)
		add("the topic of table "+t.Name+" cannot be read", "records are joined with the rows that were read; a partition that comes to this process waits")
	}
}

// tooLate says what happens to a late record.
func tooLate(then pipeline.Then) string {
	return [...]string{pipeline.Park: "it is parked, with the reason late", pipeline.Drop: "it is dropped, counted, and lost", pipeline.Stop: "the pipeline ends at it"}[then]
}

// windowFailures describes the outcome of records that cannot be added to their window.
func (e *explainer) windowFailures(add func(at, then string)) {
	agg := e.pipeline.Aggregate
	if agg == nil {
		return
	}
	late := tooLate(agg.Late)
	closed := "The window of a record is closed when " + e.newer() + " newer than the window's end by at least the grace of " + schema.Duration(agg.Grace)
	switch gap := agg.Over.Gap(); {
	case gap > 0:
		closed = "The session of a record is closed when " + e.newer() + " newer than the session's last one by more than gap and grace, " + schema.Duration(gap+agg.Grace)
		add("a record joins two sessions", "the sessions become one, unless that one would be longer than "+schema.Duration(agg.Over.Most())+" (max): then the record joins the first. A session whose result is written is never changed")
	case agg.Over.Every() < agg.Over.Size():
		closed += "; it counts in those of its windows that are open, and is late if none is"
	}
	if agg.Correct > 0 {
		add("a record comes after its window is closed", "if the window was closed less than "+schema.Duration(agg.Correct)+" ago (correct), the result is written again with the record, in the record's transaction. Otherwise it is late: "+late+". "+closed)
	} else {
		add("a record comes after its window is closed", "it is late: "+late+"; a redrive does not change that. "+closed)
	}
	add("a record is more than "+schema.Duration(agg.MaxAhead)+" ahead of the clock", "it is parked, and closes no window")
	add(tooOld(agg.MaxBehind), "it is parked")
	if agg.Idle == semel.Forever {
		add("no more records come", "windows that are open stay open until "+e.newer()+" newer (idle: forever)")
		return
	}
	add("no more records come", e.idleCondition(agg.Idle)+", each window is closed if its end is at least idle + grace + "+schema.Duration(stream.ClockMargin)+" ago"+
		". If the topic has message.timestamp.type=LogAppendTime, no later record is older. With CreateTime, a record that its producer holds back for longer than grace and idle is late")
}

// tooOld says which times of records are refused.
func tooOld(behind time.Duration) string {
	switch {
	case behind == 0:
		return "a record has no time, or one from before 1973"
	case behind >= semel.Forever:
		return "a record has no time, or one from before 1970"
	}
	return "a record has no time, or is more than " + schema.Duration(behind) + " behind the clock"
}

// newer says which records close the window of a record, up to an adjective.
func (e *explainer) newer() string {
	if e.source.Repartition != "" {
		return "every partition of the input has had a record that is"
	}
	return "a record of the same partition is"
}

// newest says which record decides how late another one is.
func (e *explainer) newest() string {
	if e.source.Repartition != "" {
		return "newest record of the slowest partition of the input"
	}
	return "newest of its partition"
}

// idleCondition says when the clock counts instead of records.
func (e *explainer) idleCondition(idle time.Duration) string {
	if e.source.Repartition != "" {
		return "if all records of a partition of the input were read and no new one comes for " + schema.Duration(idle) + " (idle), the other partitions decide; if no partition gets new records"
	}
	return "if all records of the partition were read and no new one comes for " + schema.Duration(idle) + " (idle)"
}

// keepFailures describes the outcome of records that keep does not simply pass on.
func (e *explainer) keepFailures(add func(at, then string)) {
	k := e.pipeline.Key.Keep
	if k == nil {
		return
	}
	if !k.Holds() {
		add("a record has an older or equal version", "it is superseded: counted, and dropped. The newest version is remembered for "+schema.Duration(e.pipeline.Window)+" (window)")
		return
	}
	late := tooLate(k.Late)
	if k.First != nil {
		add("another record of the key comes", "the earlier one is held, and the other is superseded, unless they are "+schema.Duration(e.pipeline.Window)+" apart (window); after one has taken effect, others are duplicates for "+schema.Duration(e.pipeline.Window)+" (window)")
		add("a record is older than the "+e.newest()+" by more than the grace of "+schema.Duration(k.Grace), "it is late, unless it is a duplicate: "+late)
	} else {
		add("another record of the key comes", "the later one is held, and the other is superseded; held records take effect once for each key and window ("+k.Last.String()+")")
		add("a record comes after its window is closed", "it is late: "+late+"; a redrive does not change that. A window is closed when "+e.newer()+" newer than the window's end by at least the grace of "+schema.Duration(k.Grace))
	}
	add("a record is more than "+schema.Duration(k.MaxAhead)+" ahead of the clock", "it is parked, and releases no held record")
	add(tooOld(k.MaxBehind), "it is parked")
	if k.Idle == semel.Forever {
		add("no more records come", "records are held until "+e.newer()+" newer (idle: forever)")
		return
	}
	add("no more records come", e.idleCondition(k.Idle)+", each held record takes effect if its time or the end of its window is at least idle + grace + "+schema.Duration(stream.ClockMargin)+" ago"+
		". If the topic has message.timestamp.type=LogAppendTime, no later record is older by the record's own time. With CreateTime, or times in the body, a record that its producer holds back for longer than grace and idle is late")
}

// windows names the topics of the open windows.
func (e *explainer) windows() []string {
	source, _ := e.pipeline.Source.(config.TransactionalSource) // only they have an aggregate
	return source.States(e.pipeline)
}

// failures describes failures other than a process crash.
func (e *explainer) failures(add func(at, then string)) {
	p := e.pipeline
	if e.mode == config.TwoPhase {
		switch {
		case p.Observe || p.OnStoreError == "pass":
			add("the store does not answer", "messages are delivered without a decision: a repeat has its effect again")
		default:
			add("the store does not answer", "the pipeline waits; nothing is dropped and nothing is acknowledged")
		}
		if e.sink.Answer > 0 {
			then := "the request is sent again, with the same key and a higher attempt"
			if p.OnLeaseExpired == "hold" {
				then = "the key becomes unknown, and the message is parked until an operator resolves it"
			}
			add("the target does not answer within "+schema.Duration(e.sink.Answer), "the outcome is unknown: "+then)
		}
	}
	add("the sink cannot be reached", "the pipeline waits, and no attempt counts")
	e.held(add)
	e.parked(add)
	if e.store.Layers != nil && e.mode == config.TwoPhase {
		add("an upper layer of "+p.Store.Name+" fails", "the stack works without it: slower, with the same answers")
	}
}

// held describes the outcome of a message whose key another delivery holds.
func (e *explainer) held(add func(at, then string)) {
	p := e.pipeline
	if p.Observe || e.mode != config.TwoPhase && e.mode != config.SameTransaction {
		return
	}
	const at = "another delivery holds the key, and does not end"
	wait, behind := schema.Duration(config.HeldWait), e.source.Behind
	if e.source.TakesBack != "" {
		add(at, fmt.Sprintf(e.source.TakesBack, wait))
		return
	}
	add(at, "the message waits until the key is done or free, without a limit. It is not parked, because its effect may be happening. Other keys continue, but "+behind+
		". After "+wait+" the log names the key and its holder, and dedup_messages_retried_total counts it, reason in flight elsewhere")
}

// parked describes the outcome of messages that cannot be processed.
func (e *explainer) parked(add func(at, then string)) {
	p := e.pipeline
	where := "in " + p.Parked.Path
	switch {
	case p.Parked.Topic != "":
		where = "in the topic " + p.Parked.Topic
	case p.Parked.Store.Name != "":
		where = "in the database of " + p.Parked.Store.Name
	}
	if p.Filter != "" || p.Map != "" {
		then := "the message is parked as it was read, with the expression and the cause, and its key stays open"
		switch p.OnFailure.Then {
		case pipeline.Drop:
			then = "the message is dropped, and lost"
		case pipeline.Stop:
			then = "the pipeline ends at it; it is not acknowledged"
		}
		add("an expression fails, such as for a missing field", "the message is not retried, because the outcome would be the same: "+then)
	}
	const at = "a message cannot be processed"
	switch p.OnFailure.Then {
	case pipeline.Drop:
		add(at, "it is dropped after its last attempt, and lost")
	case pipeline.Stop:
		add(at, "the pipeline ends at it after its last attempt; it is not acknowledged")
	default:
		add(at, "it is parked "+where+", with its reason, before it is acknowledged; other keys continue")
	}
}
