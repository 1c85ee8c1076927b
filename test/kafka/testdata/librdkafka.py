"""Prints what is committed in a topic, a JSON array of partition, key and value a line.

Arguments: brokers, topic, number of partitions. Ends when its standard input does.
"""

import json
import os
import sys
import threading

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition


def main(brokers, topic, partitions):
    consumer = Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": "librdkafka",  # required, and not used: nothing is committed
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            # An offset that is not there must not begin the topic again.
            "auto.offset.reset": "error",
            "reconnect.backoff.max.ms": 500,
        }
    )
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(partitions)])
    while True:
        for message in consumer.consume(num_messages=1000, timeout=0.2):
            error = message.error()
            if error is None:
                line = [message.partition(), message.key().decode(), message.value().decode()]
                sys.stdout.write(json.dumps(line) + "\n")
            elif error.fatal() or error.code() == KafkaError._AUTO_OFFSET_RESET:
                raise KafkaException(error)
            else:  # it tries again
                print(error, file=sys.stderr)
        sys.stdout.flush()


def end_with_input():
    while sys.stdin.readline():
        pass
    os._exit(0)


threading.Thread(target=end_with_input, daemon=True).start()
main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
