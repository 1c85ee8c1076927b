"""Tests of the middleware, with the frameworks themselves."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import unittest
from collections.abc import AsyncIterator, Iterator
from typing import Any, Optional

import django
from django import conf
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.test import Client as DjangoClient
from django.urls import path
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import StreamingResponse

import semel
from semel.fastapi import Once

from .test_client import new_client


class Hooks:
    """What a receiver does with an event, and how often it did it."""

    def __init__(self) -> None:
        self.n = 0
        self.attempts: list[int] = []
        self.leave = threading.Event()

    def take(self, event: str) -> tuple[int, dict[str, Any]]:
        self.n += 1
        with contextlib.suppress(LookupError):
            self.attempts.append(semel.current().attempt)
        if event == "broken" and self.n == 1:
            return 500, {"detail": "try again"}
        if event == "raises" and self.n == 1:
            raise KeyError(event)
        if event == "times out":
            raise TimeoutError(event)
        if event == "stalls":
            self.leave.wait(60)
        return 201, {"n": self.n}


class Receiver:
    """The same tests for each framework."""

    hooks: Hooks
    client: Any

    def post(self, path: str, event: str, id: str) -> tuple[int, dict[str, str], bytes]:
        raise NotImplementedError

    def test_a_repetition_gets_the_first_answer(self: Any) -> None:
        status, headers, body = self.post("/webhooks/stripe", "paid", "evt-1")
        self.assertEqual((status, "idempotent-replayed" in headers), (201, False))
        self.assertEqual(self.hooks.attempts, [1])
        again, headers, same = self.post("/webhooks/stripe", "paid", "evt-1")
        self.assertEqual((again, same, self.hooks.n), (201, body, 1))
        self.assertEqual(headers["idempotent-replayed"], "true")
        self.assertEqual(headers["content-type"], "application/json")

    def test_another_path_is_another_effect(self: Any) -> None:
        self.post("/webhooks/stripe", "paid", "evt-1")
        self.post("/webhooks/github", "paid", "evt-1")
        self.assertEqual(self.hooks.n, 2)

    def test_an_answer_with_an_error_lets_the_repetition_run(self: Any) -> None:
        for event in ("broken", "raises"):
            self.hooks.n = 0
            self.assertEqual(self.post("/webhooks/stripe", event, event)[0], 500)
            self.assertEqual(self.post("/webhooks/stripe", event, event)[0], 201)

    def test_a_request_without_an_id_is_refused(self: Any) -> None:
        status, _, body = self.post("/webhooks/stripe", "paid", "")
        self.assertEqual((status, body), (400, b"the header Webhook-Id is missing"))
        self.assertEqual(self.hooks.n, 0)

    def test_other_requests_pass(self: Any) -> None:
        self.assertEqual(self.post("/other", "paid", "evt-1")[0], 201)
        self.assertEqual(self.post("/other", "paid", "evt-1")[0], 201)
        self.assertEqual(self.hooks.n, 2)

    def test_an_event_in_flight_comes_again(self: Any) -> None:
        with self.client.claim(("/webhooks/stripe", "evt-1")):
            status, headers, _ = self.post("/webhooks/stripe", "paid", "evt-1")
        self.assertEqual(status, 503)  # after 409, some senders give up
        self.assertGreaterEqual(int(headers["retry-after"]), 1)

    def test_a_streamed_answer_is_repeated_whole(self: Any) -> None:
        status, _, body = self.post("/webhooks/streams", "paid", "evt-1")
        self.assertEqual((status, body), (200, b"one two"))
        again, headers, same = self.post("/webhooks/streams", "paid", "evt-1")
        self.assertEqual((again, same, self.hooks.n), (200, body, 1))
        self.assertEqual(headers["idempotent-replayed"], "true")

    def test_an_event_without_an_answer_does_not_keep_its_key(self: Any) -> None:
        self.renew_for("100ms")
        stalled = threading.Thread(
            target=self.post, args=("/webhooks/stripe", "stalls", "evt-1"), daemon=True
        )
        stalled.start()
        try:
            document, deadline = b"", time.monotonic() + 60
            while b"semel keys resolve" not in document and time.monotonic() < deadline:
                if self.hooks.n:  # the first one has the key
                    document = self.post("/webhooks/stripe", "paid", "evt-1")[2]
            self.assertIn(b"semel keys resolve", document)
            self.assertEqual(self.hooks.n, 1)
        finally:
            self.hooks.leave.set()
            stalled.join()

    def test_an_event_without_outcome_is_refused_until_it_is_settled(self: Any) -> None:
        self.assertEqual(self.post("/webhooks/stripe", "times out", "evt-1")[0], 500)
        status, headers, body = self.post("/webhooks/stripe", "times out", "evt-1")
        self.assertEqual((status, self.hooks.n), (503, 1))
        self.assertIn(b"semel keys resolve", body)
        self.assertNotIn("retry-after", headers)


class FastAPITest(Receiver, unittest.TestCase):
    def setUp(self) -> None:
        self.hooks, self.client = Hooks(), new_client()
        self.renew_for(None)

    def renew_for(self, most: Optional[str]) -> None:
        client = self.client.using(renew_for=most, lease="300ms" if most else "30s")
        self.app = FastAPI()
        self.app.add_middleware(Once, client=client, path="/webhooks", key="Webhook-Id")

        @self.app.post("/webhooks/streams")
        async def stream(request: Request) -> StreamingResponse:
            self.hooks.take((await request.json())["event"])

            async def parts() -> AsyncIterator[bytes]:
                yield b"one "
                yield b"two"

            return StreamingResponse(parts())

        @self.app.post("/webhooks/{sender}", status_code=201)
        @self.app.post("/other", status_code=201)
        async def receive(request: Request) -> dict[str, Any]:
            event = (await request.json())["event"]
            status, answer = await asyncio.to_thread(self.hooks.take, event)
            if status != 201:
                raise HTTPException(status)
            return answer

    def test_an_answer_without_an_end_leaves_the_outcome_open(self) -> None:
        messages = [
            {"type": "http.response.start", "status": 201, "headers": []},
            {"type": "http.response.body", "body": b"part", "more_body": True},
        ]
        ran: list[int] = []
        for sends in range(3):

            async def breaks(scope: Any, receive: Any, send: Any, sends: int = sends) -> None:
                ran.append(sends)
                for message in messages[:sends]:
                    await send(message)

            app = Once(breaks, client=self.client, path="/webhooks", key="Webhook-Id")
            for _ in "12":
                answer = self.post("/webhooks/stripe", "paid", f"evt-{sends}", app)
                self.assertEqual(answer[0], 503)
            self.assertIn(b"semel keys resolve", answer[2])
        self.assertEqual(ran, [0, 1, 2])

    def post(
        self, path: str, event: str, id: str, app: Any = None
    ) -> tuple[int, dict[str, str], bytes]:
        body = b'{"event":"' + event.encode() + b'"}'
        headers = [(b"content-type", b"application/json")]
        if id:
            headers.append((b"webhook-id", id.encode()))
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST",
            "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
            "scheme": "http", "headers": headers, "server": ("test", 80), "client": ("test", 1),
        }  # fmt: skip
        parts = [body[:5], body[5:]]
        answers: list[Any] = []

        async def receive() -> dict[str, Any]:
            if not parts:  # an answer is whole although its sender has left
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

        async def send(message: Any) -> None:
            answers.append(message)

        async def call() -> None:
            await (app or self.app)(scope, receive, send)

        # The outermost middleware of Starlette answers 500, and raises.
        with contextlib.suppress(KeyError, TimeoutError):
            asyncio.run(call())
        return (
            answers[0]["status"],
            {name.decode().lower(): value.decode() for name, value in answers[0]["headers"]},
            b"".join(message.get("body", b"") for message in answers[1:]),
        )


django_hooks = Hooks()


def django_view(request: HttpRequest, sender: str = "") -> HttpResponse:
    import json

    status, answer = django_hooks.take(json.loads(request.body)["event"])
    return JsonResponse(answer, status=status)


def django_stream(request: HttpRequest) -> StreamingHttpResponse:
    import json

    event = json.loads(request.body)["event"]
    django_hooks.take(event)

    def parts() -> Iterator[bytes]:
        yield b"one "
        if event == "broken" and django_hooks.n == 1:
            raise KeyError(event)
        yield b"two"

    return StreamingHttpResponse(parts())


urlpatterns = [
    path("webhooks/streams", django_stream),
    path("webhooks/<sender>", django_view),
    path("other", django_view),
]


class DjangoTest(Receiver, unittest.TestCase):
    def setUp(self) -> None:
        self.hooks, self.client = django_hooks, new_client()
        self.hooks.__init__()  # type: ignore[misc]
        if not conf.settings.configured:
            conf.settings.configure(
                ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], MIDDLEWARE=["semel.django.Once"]
            )
            django.setup()
        conf.settings.SEMEL_CLIENT = self.client
        conf.settings.SEMEL_ONCE = {"/webhooks/": "Webhook-Id"}

    def renew_for(self, most: str) -> None:
        conf.settings.SEMEL_CLIENT = self.client.using(renew_for=most, lease="300ms")

    def test_an_error_in_a_streamed_answer_lets_the_repetition_run(self) -> None:
        self.assertEqual(self.post("/webhooks/streams", "broken", "evt-1")[0], 500)
        self.assertEqual(self.post("/webhooks/streams", "broken", "evt-1")[2], b"one two")

    def post(self, path: str, event: str, id: str) -> tuple[int, dict[str, str], bytes]:
        sender = DjangoClient(raise_request_exception=False)
        headers = {"HTTP_WEBHOOK_ID": id} if id else {}
        answer = sender.post(path, {"event": event}, content_type="application/json", **headers)
        return (
            answer.status_code,
            {name.lower(): value for name, value in answer.items()},
            b"".join(answer) if answer.streaming else answer.content,
        )
