"""A consumer loop for RabbitMQ with pika."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, NamedTuple, Optional

from pika.adapters.blocking_connection import BlockingChannel
from pika.spec import Basic, BasicProperties

from .client import Client
from .consumer import Settler
from .wire import Id


class Message(NamedTuple):
    """A delivery of RabbitMQ."""

    method: Basic.Deliver
    properties: BasicProperties
    body: bytes


def consume(
    channel: BlockingChannel,
    queue: str,
    client: Client,
    handler: Callable[[Message], Any],
    key: Callable[[Message], Id],
    *,
    park: Optional[Callable[[Message, Exception], None]] = None,
    attempts: int = 5,
    prefetch: int = 100,
    stop: Optional[threading.Event] = None,
) -> None:
    """Calls the handler once for the key of each message, until `stop` is set.

    A message is acknowledged when it is settled; see Settler for `park` and `attempts`. The
    handler runs in a thread of its own, while this one answers heartbeats.
    """
    stop = stop or threading.Event()
    settler = Settler(park, attempts, stop)
    connection = channel.connection
    channel.basic_qos(prefetch_count=prefetch)
    again: list[Message] = []
    with ThreadPoolExecutor(1, "semel-handler") as worker:
        try:
            while not stop.is_set():
                messages = again + _read(channel, queue, prefetch - len(again))
                work = worker.submit(client.once_each, messages, handler, key)
                work.add_done_callback(lambda _: connection.add_callback_threadsafe(_nothing))
                while not work.done():
                    connection.process_data_events(time_limit=1)
                again = []
                for message, outcome in zip(messages, work.result()):
                    tag = message.method.delivery_tag
                    if settler.settled(tag, message, outcome):
                        channel.basic_ack(tag)
                    else:
                        again.append(message)  # it stays with this consumer
                if again:
                    settler.pause()
        finally:
            if channel.is_open:
                channel.cancel()  # what is not acknowledged goes back to the queue


def _read(channel: BlockingChannel, queue: str, most: int) -> list[Message]:
    """Returns what has arrived, and waits for the first message if there is none."""
    messages: list[Message] = []
    if most == 0:
        return messages
    for method, properties, body in channel.consume(queue, inactivity_timeout=0.5):
        if method is None:
            break
        messages.append(Message(method, properties, body))
        if len(messages) == most or channel.get_waiting_message_count() == 0:
            break
    return messages


def _nothing() -> None:
    """Ends the wait for events."""
