"""Tests of the consumer loops and of the Celery decorator, with real brokers.

SEMEL_TEST_KAFKA and SEMEL_TEST_RABBITMQ have their addresses.
"""

from __future__ import annotations

import json
import os
import threading
import unittest
import uuid
from collections import Counter
from typing import Any, Callable, Optional
from unittest import mock

import celery
import celery.signals
import pika
from celery.contrib.testing.worker import start_worker
from celery.exceptions import Reject, SoftTimeLimitExceeded
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import semel
import semel.celery
import semel.kafka
import semel.pika
from semel import Outcome, doubt
from semel.consumer import Settler

from .test_client import new_client

PATIENCE = 180  # seconds, for a busy machine


class Handler:
    """Handles orders, and fails for some."""

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()
        self.parked: list[tuple[str, Exception]] = []

    def handle(self, body: bytes) -> str:
        order = str(json.loads(body)["id"])
        self.ran[order] += 1
        if order == "fails twice" and self.ran[order] < 3:
            raise KeyError(order)
        if order == "always fails":
            raise KeyError(order)
        if order == "may have happened":
            raise semel.Unknown(order)
        if order == "declined":
            raise semel.Permanent(order)
        return order

    def park(self, body: bytes, error: Exception) -> None:
        self.parked.append((body.decode(), error))


ORDERS = ["a", "b", "a", "fails twice", "declined", "always fails", "may have happened", "b"]
BODIES = [json.dumps({"id": order}).encode() for order in ORDERS] + [b"not JSON", b'{"id":"last"}']
RAN = {"a": 1, "b": 1, "fails twice": 3, "declined": 1, "always fails": 3, "last": 1}
RAN["may have happened"] = 1


def key(body: bytes) -> str:
    return str(json.loads(body)["id"])


class SettlerTest(unittest.TestCase):
    def test_an_error_of_the_credentials_parks_no_message(self) -> None:
        parked: list[Any] = []
        settler = Settler(lambda message, error: parked.append(message), 1, threading.Event())
        for problem, parks in (("unauthenticated", 0), ("forbidden", 0), ("key-invalid", 1)):
            error = semel.Refused("no")
            error.problem = problem
            if parks:
                self.assertTrue(settler.settled(7, problem, Outcome(error=error)))
            else:
                with self.assertRaises(semel.Refused):
                    settler.settled(7, problem, Outcome(error=error))
        self.assertEqual(parked, ["key-invalid"])


class ConsumerTest(unittest.TestCase):
    def judge(self, handler: Handler) -> None:
        self.assertEqual(handler.ran, RAN)
        parked = [(body, type(error).__name__) for body, error in handler.parked]
        self.assertEqual(
            sorted(parked),
            [
                ("not JSON", "JSONDecodeError"),
                ('{"id": "always fails"}', "KeyError"),
                ('{"id": "may have happened"}', "Unknown"),
            ],
        )

    def run_until(self, done: Callable[[], bool], loop: Callable[[threading.Event], None]) -> None:
        """Runs a loop in a thread until it is done."""
        stop, failed = threading.Event(), []

        def run() -> None:
            try:
                loop(stop)
            except Exception as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        for _ in range(PATIENCE * 10):
            if done() or not thread.is_alive():
                break
            thread.join(0.1)
        stop.set()
        thread.join()
        self.assertEqual(failed, [])
        self.assertTrue(done(), "the loop is not done")


@unittest.skipUnless(os.environ.get("SEMEL_TEST_KAFKA"), "there is no Kafka")
class KafkaTest(ConsumerTest):
    def setUp(self) -> None:
        self.brokers = os.environ["SEMEL_TEST_KAFKA"]
        self.topic = self.group = "python-" + uuid.uuid4().hex
        self.admin = AdminClient({"bootstrap.servers": self.brokers})
        self.admin.create_topics([NewTopic(self.topic, 1, 1)])[self.topic].result()
        producer = Producer({"bootstrap.servers": self.brokers})
        for body in BODIES:
            producer.produce(self.topic, body)
        producer.flush()

    def tearDown(self) -> None:
        self.admin.delete_topics([self.topic])[self.topic].result()

    def consumer(self) -> Consumer:
        consumer = Consumer(
            {
                "bootstrap.servers": self.brokers,
                "group.id": self.group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([self.topic])
        return consumer

    def test_each_order_takes_effect_once(self) -> None:
        handler, client = Handler(), new_client()
        consumer = self.consumer()

        def loop(stop: threading.Event) -> None:
            semel.kafka.consume(
                consumer, client, lambda m: handler.handle(m.value()), lambda m: key(m.value()),
                park=lambda m, error: handler.park(m.value(), error), attempts=3, stop=stop,
            )  # fmt: skip

        self.run_until(lambda: handler.ran["last"] > 0, loop)
        consumer.close()
        self.judge(handler)

        # Everything is committed: another consumer gets only what comes after.
        producer = Producer({"bootstrap.servers": self.brokers})
        producer.produce(self.topic, b'{"id":"after"}')
        producer.flush()
        consumer = self.consumer()
        message: Optional[Any] = None
        while message is None:
            message = consumer.poll(1)
        consumer.close()
        self.assertEqual(message.value(), b'{"id":"after"}')

    def test_a_message_that_needs_a_person_ends_the_loop_without_park(self) -> None:
        handler, client, consumer = Handler(), new_client(), self.consumer()
        with self.assertRaises(KeyError):
            semel.kafka.consume(
                consumer, client, lambda m: handler.handle(m.value()), lambda m: key(m.value()),
                attempts=1,
            )  # fmt: skip
        consumer.close()
        self.assertEqual(handler.ran["a"], 1)


class SeekTest(unittest.TestCase):
    """A seek that fails, which no broker does when asked."""

    def consume(self, assigned: list[TopicPartition]) -> mock.Mock:
        message = mock.Mock(**{"error.return_value": None, "offset.return_value": 7})
        message.configure_mock(**{"topic.return_value": "t", "partition.return_value": 0})
        consumer, stop = mock.Mock(), threading.Event()
        consumer.consume.return_value = [message]
        consumer.seek.side_effect = KafkaException(KafkaError(KafkaError._STATE))

        def assignment() -> list[TopicPartition]:
            stop.set()
            return assigned

        consumer.assignment.side_effect = assignment
        handler = mock.Mock(side_effect=KeyError)
        semel.kafka.consume(consumer, new_client(), handler, lambda m: "order-7", stop=stop)
        return consumer

    def test_it_ends_the_loop_unless_another_consumer_has_the_partition(self) -> None:
        self.consume([TopicPartition("t", 1)]).commit.assert_not_called()
        with self.assertRaises(KafkaException):
            self.consume([TopicPartition("t", 1), TopicPartition("t", 0)])


@unittest.skipUnless(os.environ.get("SEMEL_TEST_RABBITMQ"), "there is no RabbitMQ")
class RabbitMQTest(ConsumerTest):
    def setUp(self) -> None:
        self.url = "amqp://guest:guest@" + os.environ["SEMEL_TEST_RABBITMQ"]
        self.queue = "python-" + uuid.uuid4().hex
        self.connection = pika.BlockingConnection(pika.URLParameters(self.url))
        self.channel = self.connection.channel()
        self.channel.queue_declare(self.queue, durable=True)

    def tearDown(self) -> None:
        self.channel.queue_delete(self.queue)
        self.connection.close()

    def test_each_order_takes_effect_once(self) -> None:
        for body in BODIES:
            self.channel.basic_publish("", self.queue, body)
        handler, client = Handler(), new_client()

        def loop(stop: threading.Event) -> None:
            connection = pika.BlockingConnection(pika.URLParameters(self.url))
            semel.pika.consume(
                connection.channel(), self.queue, client, lambda m: handler.handle(m.body),
                lambda m: key(m.body), park=lambda m, error: handler.park(m.body, error),
                attempts=3, stop=stop,
            )  # fmt: skip
            connection.close()

        def done() -> bool:
            return len(handler.parked) == 3 and handler.ran["fails twice"] == 3

        self.run_until(done, loop)
        self.judge(handler)
        left = self.channel.queue_declare(self.queue, passive=True)
        self.assertEqual(left.method.message_count, 0)

    def test_the_soft_time_limit_of_celery_leaves_the_outcome_open(self) -> None:
        self.assertTrue(doubt.leaves(SoftTimeLimitExceeded()))

    def test_celery_tasks_take_effect_once(self) -> None:
        app = celery.Celery("tests", broker=self.url, set_as_current=False)
        app.conf.task_default_queue = self.queue
        app.conf.task_acks_late = app.conf.task_reject_on_worker_lost = True
        handler, client, ended = Handler(), new_client(), threading.Semaphore(0)

        @app.task(name="charge")
        @semel.celery.once(client, key="order")
        def charge(order: str) -> str:
            self.assertEqual(semel.current().attempt, 1)
            return handler.handle(json.dumps({"id": order}).encode())

        @app.task(name="by-task-id", bind=True)
        @semel.celery.once(client)
        def by_task_id(self: Any, order: str) -> str:
            if not self.request.retries:
                raise self.retry(countdown=0)
            return handler.handle(json.dumps({"id": order}).encode())

        @app.task(name="end")
        def end() -> None:
            ended.release()

        @app.task(name="mail")
        @semel.celery.once(client, key="order")
        def mail(order: str) -> str:
            return handler.handle(json.dumps({"id": "mail " + order}).encode())

        @app.task(name="fails", bind=True, max_retries=1, default_retry_delay=0)
        @semel.celery.once(client, key="order")
        def fails(self: Any, order: str) -> str:
            try:
                return handler.handle(json.dumps({"id": order}).encode())
            except KeyError as error:
                raise self.retry(exc=error) from None

        # "held" is in flight when its task comes, and for longer than a task has retries.
        came, enough = Counter[str](), threading.Event()

        def retried(sender: Any, request: Any, **_: Any) -> None:
            came[sender.name] += 1
            if min(came["charge"], came["fails"]) == 6:
                enough.set()

        celery.signals.task_retry.connect(retried)
        self.addCleanup(celery.signals.task_retry.disconnect, retried)
        holders = [client.claim(("charge", "held")), client.claim(("fails", "always fails"))]
        for holder in holders:
            holder.__enter__()
        with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=PATIENCE):
            for order in ("a", "held", "a", "declined", "declined"):
                charge.delay(order)
            mail.delay("a")
            fails.delay("always fails")
            by_task_id.apply_async(("b",), task_id="1")
            by_task_id.apply_async(("b",), task_id="2")
            end.delay()
            self.assertTrue(ended.acquire(timeout=PATIENCE))
            self.assertTrue(enough.wait(PATIENCE), came)
            self.assertEqual(handler.ran["held"] + handler.ran["always fails"], 0)
            for holder in holders:
                holder.__exit__(KeyError, KeyError(), None)
            for _ in range(PATIENCE * 10):
                if handler.ran["held"] and handler.ran["b"] == handler.ran["always fails"] == 2:
                    break
                threading.Event().wait(0.1)
        # The attempts of a task are its own: waiting for a key takes none.
        ran = {"a": 1, "mail a": 1, "held": 1, "declined": 1, "b": 2, "always fails": 2}
        self.assertEqual(handler.ran, ran)

    def test_a_task_that_cannot_be_sent_again_goes_back_to_the_broker(self) -> None:
        task = mock.Mock()
        task.signature_from_request.return_value.apply_async.side_effect = OSError("no broker")
        rejected = semel.celery._again(task, semel.InFlight())
        self.assertIsInstance(rejected, Reject)
        self.assertTrue(rejected.requeue)

    def test_a_task_that_no_worker_runs_is_not_retried(self) -> None:
        app, client = celery.Celery("tests", set_as_current=False), new_client()

        @app.task(name="in-process", shared=False)
        @semel.celery.once(client, key="order")
        def charge(order: str) -> str:
            return order

        with client.claim(("in-process", "held")), self.assertRaises(semel.InFlight):
            charge("held")
        app.conf.task_always_eager = app.conf.task_eager_propagates = True
        with client.claim(("in-process", "held too")), self.assertRaises(semel.InFlight):
            charge.delay("held too")
        with self.assertRaisesRegex(TypeError, "async def"):

            @semel.celery.once(client)
            async def never(order: str) -> None: ...
