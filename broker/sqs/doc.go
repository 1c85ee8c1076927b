// Package sqs has a source and a sink for Amazon SQS.
//
// The source deletes a message when its outcome is durable, and keeps it invisible
// to other processes until then, however long the effect takes. It never hands out
// the MessageId of SQS, because that is another one each time a producer repeats a
// message. In a FIFO queue each message group keeps its order, and a message that
// fails holds up its group only.
//
// Sink and [Publisher] send in batches. On a FIFO queue they make MessageGroupId and
// MessageDeduplicationId from the key, so that SQS stores a repeated message once
// within five minutes. Semel's own store covers what is older. A standard queue
// recognises nothing.
package sqs
