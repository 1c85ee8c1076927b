"""A consumer loop for confluent-kafka."""

from __future__ import annotations

import logging
import threading
from typing import Any, Callable, Optional

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from .client import Client
from .consumer import Settler
from .wire import Id

_log = logging.getLogger("semel.kafka")


def consume(
    consumer: Consumer,
    client: Client,
    handler: Callable[[Message], Any],
    key: Callable[[Message], Id],
    *,
    park: Optional[Callable[[Message, Exception], None]] = None,
    attempts: int = 5,
    batch: int = 100,
    stop: Optional[threading.Event] = None,
) -> None:
    """Calls the handler once for the key of each message, until `stop` is set.

    The consumer has subscribed, with enable.auto.commit false. Messages of a partition are
    handled in order. An offset is committed when all messages before it are settled; see
    Settler for `park` and `attempts`.
    """
    stop = stop or threading.Event()
    settler = Settler(park, attempts, stop)
    while not stop.is_set():
        messages = []
        for message in consumer.consume(batch, timeout=0.5):
            error = message.error()
            if error is None:
                messages.append(message)
            elif error.fatal():
                raise KafkaException(error)
            else:
                _log.warning("%s", error)  # the consumer repeats it
        outcomes = client.once_each(messages, handler, key, group=_partition)
        again: dict[Any, int] = {}
        settled: dict[Any, int] = {}
        try:
            for message, outcome in zip(messages, outcomes):
                partition = _partition(message)
                if partition in again:
                    continue
                if settler.settled((*partition, message.offset()), message, outcome):
                    settled[partition] = message.offset() + 1
                else:
                    again[partition] = message.offset()
        finally:
            _commit(consumer, settled)
        for (topic, number), offset in again.items():
            try:
                consumer.seek(TopicPartition(topic, number, offset))
            except KafkaException as error:
                if any((a.topic, a.partition) == (topic, number) for a in consumer.assignment()):
                    raise  # the next message would come, and this one be lost
                _log.info("another consumer has %s/%d now: %s", topic, number, error)
        if again:
            settler.pause()


def _partition(message: Message) -> Any:
    return message.topic(), message.partition()


def _commit(consumer: Consumer, settled: dict[Any, int]) -> None:
    offsets = [TopicPartition(*partition, offset) for partition, offset in settled.items()]
    if not offsets:
        return
    try:
        consumer.commit(offsets=offsets, asynchronous=False)
    except KafkaException as error:
        _log.warning("not committed, so messages come again as duplicates: %s", error)
