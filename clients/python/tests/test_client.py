"""Tests of the client against the server of SEMEL_URL."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import enum
import functools
import http.client
import io
import json
import os
import pickle
import queue
import select
import socket
import ssl
import threading
import unittest
import urllib.error
import uuid
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from concurrent.futures.thread import BrokenThreadPool
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from unittest import mock

import semel
from semel import doubt, lanes, leases, wire
from semel.link import Address, Link, read_answer


def new_client(**policy: Any) -> semel.Client:
    """Returns a client with a scope of its own, for a machine that may be slow."""
    return semel.Client(**{"scope": uuid.uuid4().hex, "lease": "60s", "timeout": 60, **policy})


class Effects:
    """Counts how often an effect ran."""

    def __init__(self, result: Any = "receipt") -> None:
        self.n, self.result = 0, result

    def __call__(self, *args: Any) -> Any:
        self.n += 1
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


class FormTest(unittest.TestCase):
    """`semel serve` writes one form, and servers in between write all others."""

    body = '{"items":["ünï €😀"]}'.encode()

    def test_an_answer_is_read_in_each_form_of_http(self) -> None:
        n, chunks = len(self.body), b""
        for at in range(0, n, 5):
            part = self.body[at : at + 5]
            chunks += b"%x;ext=1\r\n%b\r\n" % (len(part), part)
        chunks += b"0\r\nX-Trailer: 1\r\n\r\n"
        for text, kept in (
            (b"HTTP/1.1 200 OK\r\nCONTENT-LENGTH:%d\r\n\r\n%b" % (n, self.body), True),
            (b"HTTP/1.1 200 \r\nTransfer-Encoding: Chunked\r\n\r\n" + chunks, True),
            (
                b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </>\r\n\r\n"
                b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (n, self.body),
                True,
            ),
            (
                b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"
                % (n, self.body),
                False,
            ),
            (b"HTTP/1.0 200 OK\r\n\r\n" + self.body, False),
        ):
            with self.subTest(text=text):
                file = io.BytesIO(text)
                self.assertEqual(read_answer(file), (200, self.body, "", kept))
                self.assertEqual(file.read(), b"")

    def test_what_is_no_whole_answer_is_refused(self) -> None:
        chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        for text in (
            b"",
            b"+OK\r\n\r\n",
            b"HTTP/1.1 200",
            b"HTTP/1.1 200 OK\r\nX: 1\r\n",
            b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n" + b"X: 1\r\n" * 1000 + b"\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}",
            b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}",
            chunked + b"x\r\n\r\n",
            chunked + b"-2\r\n{}\r\n0\r\n\r\n",
            chunked + b"2\r\n{}\r\n",
            chunked + b"5\r\n{}\r\n",
        ):
            with self.subTest(text=text[:80]):
                self.assertRaises(ValueError, read_answer, io.BytesIO(text))


class Scripted:
    """A server that answers each request by the next line of a script: with a dict and status 200,
    with another status, by what a function does with the connection, or, for None, by its end.
    """

    def __init__(self, *script: Any) -> None:
        self.connections, self.script = 0, list(script)
        self.requests: queue.Queue[list[Any]] = queue.Queue()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock = self._listener.accept()[0]
                self.connections += 1
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with sock, sock.makefile("rb") as file, contextlib.suppress(ConnectionResetError):
            while line := file.readline():
                length = 0
                while line.strip():
                    name, _, value = line.partition(b":")
                    length = int(value) if name.lower() == b"content-length" else length
                    line = file.readline()
                self.requests.put(json.loads(file.read(length))["items"])
                answer = self.script.pop(0)
                if answer is None:
                    return
                if callable(answer):
                    answer(sock)
                else:
                    sock.sendall(whole(answer))

    def close(self) -> None:
        self._listener.close()

    def next(self) -> list[Any]:
        return self.requests.get(timeout=60)


def whole(answer: Any) -> bytes:
    status = answer.get("status", 200)
    text = json.dumps(answer).encode()
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(text), text)


def granted(token: str) -> dict[str, Any]:
    return {"items": [{"decision": "fresh", "token": token, "attempt": 1, "lease_ms": 60000}]}


DONE: dict[str, Any] = {"items": [{"state": "done"}]}


class LinkTest(unittest.TestCase):
    """One connection to a server that the test makes."""

    def start(self, *script: Any) -> Scripted:
        server = Scripted(*script)
        self.addCleanup(server.close)
        self.link = Link(Address(server.url, None, None))
        self.addCleanup(self.link.close)
        return server

    def post(self) -> Any:
        return self.link.post("/v1/batch", b'{"items":[]}', 60)

    def test_bytes_behind_an_answer_are_not_the_next_answer(self) -> None:
        stale = whole({"items": ["stale"]})
        for behind in (stale, stale[:-1], b"\r\n"):
            server = self.start(
                lambda sock, behind=behind: sock.sendall(whole({"items": [1]}) + behind),
                {"items": [2]},
            )
            self.assertEqual(self.post(), {"items": [1]})
            self.assertEqual(self.post(), {"items": [2]})
            self.assertEqual(server.connections, 2)

    def test_bytes_that_come_while_nothing_is_asked_are_not_the_next_answer(self) -> None:
        read, ended = threading.Event(), threading.Event()

        def late(sock: socket.socket) -> None:
            sock.sendall(whole({"items": [1]}))
            read.wait(60)
            sock.sendall(whole({"status": 408}))

        def ends(sock: socket.socket) -> None:
            sock.sendall(whole({"items": [2]}))
            ended.wait(60)
            sock.shutdown(socket.SHUT_WR)

        server = self.start(late, ends, {"items": [3]})
        for n, event in ((1, read), (2, ended), (3, None)):
            self.assertEqual(self.post(), {"items": [n]})
            if event is not None:
                event.set()
                self.assertTrue(select.select([self.link._sock], [], [], 60)[0])
        self.assertEqual((server.connections, server.requests.qsize()), (3, 3))

    def test_a_connection_is_used_again(self) -> None:
        server = self.start({"items": [1]}, {"items": [2]})
        self.assertEqual([self.post(), self.post()], [{"items": [1]}, {"items": [2]}])
        self.assertEqual(server.connections, 1)

    def test_a_request_whose_answer_is_lost_is_sent_once(self) -> None:
        server = self.start({"items": [1]}, None, {"items": [3]})
        self.post()
        with self.assertRaises(wire.Problem) as lost:
            self.post()
        self.assertEqual((lost.exception.kind, lost.exception.retry), ("no-answer", "same"))
        self.assertEqual(server.requests.qsize(), 2)
        self.assertEqual(self.post(), {"items": [3]})


class OnceTest(unittest.TestCase):
    def test_a_repetition_gets_the_first_result(self) -> None:
        for result in ("receipt", "42", {"n": 2**70, "é": [1.5, None]}, 0, "", [], False, None):
            with self.subTest(result=result):
                client, charge = new_client(), Effects(result)
                self.assertEqual(client.once("order-7", charge, 1), result)
                self.assertEqual(client.once("order-7", charge, 2), result)
                self.assertEqual(charge.n, 1)

    def test_a_failed_effect_runs_again(self) -> None:
        client, broken, charge = new_client(), Effects(KeyError("x")), Effects()
        with self.assertRaises(KeyError):
            client.once("order-7", broken)
        self.assertEqual(client.once("order-7", charge), "receipt")

    def test_a_permanent_failure_is_kept(self) -> None:
        client = new_client(permanent_on=(ValueError,))
        for error in (semel.Permanent("card declined"), ValueError("card declined")):
            key, broken = uuid.uuid4(), Effects(error)
            with self.assertRaises(type(error)):
                client.once(key, broken)
            with self.assertRaisesRegex(semel.Permanent, "card declined") as again:
                client.once(key, broken)
            self.assertTrue(again.exception.replayed)
            self.assertEqual(broken.n, 1)

    def test_a_failure_with_a_long_text_is_kept_as_a_failure(self) -> None:
        client, broken = new_client(), Effects(semel.Permanent("declined " + "x" * 3_000_000))
        for _ in range(2):
            with self.assertRaisesRegex(semel.Permanent, "declined"):
                client.once("order-7", broken)
        self.assertEqual(broken.n, 1)

    def test_an_error_that_says_that_nothing_ran_is_no_failure_of_the_effect(self) -> None:
        for policy in ({"permanent_on": (Exception,)}, {"unknown_on": (Exception,)}):
            client = new_client(**policy)
            outcomes = client.once_each(["a", "b"], self.fail, key=str, group=lambda _: "g")
            self.assertEqual(type(outcomes[1].error), semel.Skipped)
            self.assertEqual(client.lookup(["b"])[0]["state"], "absent")

            clock = mock.patch("semel.claim.now", lambda: leases.now() + 3600)

            def late(_: Any, clock: Any = clock) -> None:
                clock.start()

            try:
                outcomes = client.once_each(["c", "d"], late, key=str)
            finally:
                clock.stop()
            self.assertEqual(type(outcomes[1].error), semel.InFlight)
            self.assertEqual(client.once("d", Effects()), "receipt")
            with client.claim("held"), self.assertRaises(semel.InFlight):
                client.once("around", client.once, "held", Effects())
            self.assertEqual(client.once("around", Effects()), "receipt")

    def test_an_effect_without_outcome_makes_the_key_unknown(self) -> None:
        client = new_client(unknown_on=(ConnectionError,))
        for error in (semel.Unknown("no answer"), ConnectionResetError(), KeyboardInterrupt()):
            key, effect = uuid.uuid4().hex, Effects(error)
            with self.assertRaises(type(error)):
                client.once(key, effect)
            with self.assertRaisesRegex(semel.Unknown, "semel keys resolve"):
                client.once(key, effect)
            self.assertEqual(client.lookup([key])[0]["state"], "unknown")
            client.resolve(key, happened=True, reason="it is in the ledger")
            self.assertIsNone(client.once(key, effect))
            self.assertEqual(effect.n, 1)

    def test_a_timeout_leaves_the_outcome_open_by_default(self) -> None:
        client, effect = new_client(), Effects(asyncio.TimeoutError())
        with self.assertRaises(asyncio.TimeoutError):
            client.once(1, effect)
        with self.assertRaises(semel.Unknown):
            client.once(1, effect)

    def test_an_error_of_a_connection_says_whether_the_effect_may_have_happened(self) -> None:
        def error(name: str, *bases: type, cause: Any = None, context: Any = None) -> Exception:
            made = type(name, bases or (Exception,), {})("x")
            made.__context__ = context
            if cause is not None:
                made.__cause__ = cause
            return made

        def group(*errors: BaseException, context: Any = None) -> BaseException:
            kind: Any = getattr(builtins, "BaseExceptionGroup", None)
            if kind is None:  # Python before 3.11 has them in a package
                base = type("BaseExceptionGroup", (BaseException,), {})
                plain = all(isinstance(error, Exception) for error in errors)
                kind = type("ExceptionGroup", (base, Exception) if plain else (base,), {})
                made = kind("x")
                made.exceptions = errors
            else:
                made = kind("x", errors)
            made.__context__ = context
            return made

        def rpc(status: str, details: str = "") -> Exception:
            made: Any = error("_InactiveRpcError", type("RpcError", (Exception,), {}))
            made.code = lambda: enum.Enum("StatusCode", [status])[status]
            made.details = lambda: details
            return made

        def sql(message: str = "", **members: str) -> Exception:
            made = type("OperationalError", (Exception,), {})(message)
            vars(made).update(members)
            return made

        unrecorded = semel.Refused("the effect ran")
        unrecorded.ran = True
        nothing = semel.Unavailable("nothing ran")
        nothing.__cause__ = TimeoutError()
        for raised, open_ in (
            (error("ReadTimeout"), True),
            (error("MyOwn", type("TimeoutException", (Exception,), {})), True),
            (error("SoftTimeLimitExceeded"), True),
            (BrokenProcessPool(), True),  # the process that ran it has died
            (BrokenThreadPool(), False),
            (error("ServerDisconnectedError"), True),
            (error("RemoteProtocolError"), True),
            (socket.timeout(), True),
            (ConnectionResetError(), True),
            (BrokenPipeError(), True),
            (http.client.IncompleteRead(b""), True),
            (urllib.error.URLError("x"), False),
            (error("ConnectionError", OSError, context=ConnectionResetError()), True),
            (error("PaymentFailed", cause=error("ReadTimeout")), True),
            (asyncio.CancelledError(), True),
            (error("ConnectionError", OSError, context=ConnectionRefusedError()), False),
            (error("ConnectionError", OSError, cause=socket.gaierror()), False),
            (error("ConnectTimeout", type("Timeout", (OSError,), {})), False),
            (error("PoolTimeout"), False),
            (nothing, False),
            (semel.Refused("nothing ran"), False),
            (unrecorded, True),
            (KeyError(), False),
            (error("RedisError", type("ConnectionError", (Exception,), {})), True),
            (error("ClientConnectorError", type("ClientConnectionError", (OSError,), {})), False),
            (error("ConnectionTimeoutError", type("ServerTimeoutError", (Exception,), {})), False),
            (error("ConnectionTimeout"), True),  # of an answer, in elastic-transport
            (type("OperationalError", (Exception,), {})("SSL SYSCALL error: EOF detected"), True),
            (error("SSLError", cause=ssl.SSLEOFError()), True),
            (error("ConnectionError", cause=ssl.SSLCertVerificationError()), False),
            (asyncio.IncompleteReadError(b"", 1), True),
            (group(KeyError(), TimeoutError()), True),
            (group(KeyError(), error("PaymentFailed", cause=group(ConnectionResetError()))), True),
            (group(KeyError(), ConnectionRefusedError(), context=TimeoutError()), False),
            (group(KeyError(), asyncio.CancelledError()), True),
            (error("PaymentFailed", cause=group(KeyError(), TimeoutError())), True),
            (rpc("DEADLINE_EXCEEDED"), True),
            (rpc("CANCELLED"), True),
            (rpc("UNAVAILABLE", "Socket closed"), True),
            (rpc("UNAVAILABLE", "failed to connect to all addresses"), False),
            (rpc("PERMISSION_DENIED"), False),
            (sql(sqlstate="57P01"), True),
            (sql(pgcode="08006"), True),
            (sql(sqlstate="08001"), False),
            (sql(sqlstate="23505"), False),
            (sql("consuming input failed: server closed the connection unexpectedly"), True),
            (sql("connection failed: server closed the connection unexpectedly"), False),
            (sql("(2013, 'Lost connection to MySQL server during query')"), True),
        ):
            self.assertEqual(doubt.leaves(raised), open_, repr(raised))
        earlier = TimeoutError()
        self.assertFalse(doubt.leaves(error("KeyError", context=earlier), outer=earlier))

    def test_under_retry_the_next_attempt_has_a_number_above_one(self) -> None:
        client, attempts = new_client(on_lease_expired="retry", wait="60s"), []

        def effect() -> str:
            attempts.append(semel.current().attempt)
            if len(attempts) < 3:
                raise TimeoutError if len(attempts) == 1 else KeyError
            return "receipt"

        for kind in (TimeoutError, KeyError):
            with self.assertRaises(kind):
                client.once("order-7", effect)
        self.assertEqual(client.once("order-7", effect), "receipt")
        self.assertEqual(attempts, [1, 2, 3])

    def test_a_result_that_json_cannot_hold_is_told_and_the_effect_is_recorded(self) -> None:
        deep: Any = []
        for _ in range(100_000):
            deep = [deep]
        for result in ({1, 2}, b"bytes", float("nan"), deep):
            client, effect = new_client(), Effects(result)
            with self.assertRaisesRegex(TypeError, "the effect is recorded, but not its result"):
                client.once("order-7", effect)
            with self.assertRaises(semel.NotKept):
                client.once("order-7", effect)
            self.assertEqual(effect.n, 1)

    def test_a_result_that_is_too_large_is_not_kept(self) -> None:
        for most in (lanes.MOST_BYTES, 100_000_000):  # the server refuses it, if not the client
            client, effect = new_client(), Effects("x" * 30_000_000)
            with mock.patch("semel.claim.MOST_BYTES", most), self.assertLogs("semel", "WARNING"):
                self.assertEqual(client.once("order-7", effect), effect.result)
            with self.assertRaises(semel.NotKept):
                client.once("order-7", effect)
            self.assertEqual(effect.n, 1)

    def test_a_completion_that_the_server_refuses_in_any_form_is_an_error(self) -> None:
        client, effect, post, asked = new_client(), Effects(), Link.post, []

        def refuse(link: Link, path: str, body: bytes, timeout: float) -> Any:
            if b'{"complete"' not in body:
                return post(link, path, body, timeout)
            asked.append(body)
            if len(asked) > 2:
                raise AssertionError("it asks without end")
            raise wire.Problem("forbidden", "no longer", "no")

        with mock.patch.object(Link, "post", refuse), self.assertLogs("semel", "WARNING"):
            with self.assertRaisesRegex(semel.Refused, "the effect ran") as refused:
                client.once("order-7", effect)
        self.assertTrue(refused.exception.ran)
        self.assertTrue(doubt.leaves(refused.exception))  # to an effect around it
        self.assertEqual(len(asked), 2)
        self.assertIn(b"not_kept", asked[1])

    def test_a_result_that_the_server_refuses_for_any_reason_is_not_kept(self) -> None:
        client, effect, post = new_client(), Effects(), Link.post

        def refuse(link: Link, path: str, body: bytes, timeout: float) -> Any:
            if b'"json"' in body:
                raise wire.Problem("invalid-request", "the result is odd", "no")
            return post(link, path, body, timeout)

        with mock.patch.object(Link, "post", refuse), self.assertLogs("semel", "WARNING"):
            self.assertEqual(client.once("order-7", effect), "receipt")
        with self.assertRaises(semel.NotKept):
            client.once("order-7", effect)
        self.assertEqual(effect.n, 1)

    def test_a_refusal_that_comes_before_the_body_is_sent_is_read(self) -> None:
        client = new_client()
        with self.assertRaisesRegex(semel.Refused, "body-too-large"):
            client._engine.ask("/v1/lookup", " " * 30_000_000)

    def test_a_call_in_flight_is_named(self) -> None:
        client = new_client(holder="worker-1")
        with client.claim("order-7", origin="orders 2/17", request_id="r-9"):
            with self.assertRaisesRegex(semel.InFlight, "worker-1") as refused:
                client.once("order-7", Effects())
            error = refused.exception
            self.assertTrue(error.retry)
            self.assertGreater(error.retry_after, 0)
            self.assertEqual((error.origin, error.request_id), ("orders 2/17", "r-9"))

    def test_wait_ends_with_the_first_call(self) -> None:
        client, began, charge = new_client(wait="60s"), threading.Event(), Effects()

        def slow() -> str:
            began.set()
            return asyncio.run(asyncio.sleep(0.1, "first"))

        results: list[str] = []
        first = threading.Thread(target=lambda: results.append(client.once("order-7", slow)))
        first.start()
        began.wait()
        self.assertEqual(client.once("order-7", charge), "first")
        first.join()
        self.assertEqual((results, charge.n), (["first"], 0))

    def test_another_payload_is_a_mismatch(self) -> None:
        client = new_client()
        with client.claim("order-7", payload={"amount": 5}):
            pass
        with client.claim("order-7", payload={"amount": 5}) as again:
            self.assertFalse(again.fresh)
        with self.assertRaises(semel.Mismatch), client.claim("order-7", payload={"amount": 6}):
            pass

    def test_an_old_message_is_late(self) -> None:
        old = datetime.now(timezone.utc) - timedelta(days=2)
        with self.assertRaises(semel.Late), new_client(window="1d").claim("order-7", time=old):
            pass

    def test_mistakes_are_named(self) -> None:
        with self.assertRaisesRegex(ValueError, 'expected "hold" or "retry"'):
            semel.Client(on_lease_expired="wait")
        with self.assertRaisesRegex(ValueError, "expected at least 50 ms"):
            semel.Client(lease=0)
        with self.assertRaisesRegex(ValueError, "is no duration"):
            semel.Client(lease="60")
        with self.assertRaisesRegex(ValueError, "is no address"):
            semel.Client("localhost:4196")
        with self.assertRaisesRegex(TypeError, "is no id"):
            semel.Client().claim(None)  # type: ignore[arg-type]
        with self.assertRaisesRegex(TypeError, "has no parameter 'order'"):
            semel.Client().idempotent("order")(lambda order_id: None)
        with self.assertRaisesRegex(semel.Refused, "nothing ran.*window") as refused:
            new_client(window="a week").once("order-7", Effects())
        self.assertFalse(refused.exception.ran)
        self.assertEqual(refused.exception.problem, "invalid-request")
        gone = semel.Client("http://127.0.0.1:9", retry_for="100ms")
        with self.assertRaisesRegex(semel.Unavailable, "nothing ran.*is `semel serve` running"):
            gone.once("order-7", Effects())

    def test_a_function_whose_body_did_not_run_is_refused(self) -> None:
        charge = Effects()

        async def coroutine() -> None:
            charge()

        def generator() -> Iterator[Any]:
            yield charge()

        async def async_generator() -> AsyncIterator[Any]:
            yield charge()

        for effect in (generator, async_generator, functools.partial(generator)):
            with self.subTest(effect=effect):
                client, charge.n = new_client(), 0
                with self.assertRaisesRegex(TypeError, "did not run"):
                    client.once("order-7", effect)
                self.assertEqual(client.lookup(["order-7"])[0]["state"], "absent")
                self.assertEqual(client.once("order-7", charge), "receipt")
                self.assertEqual(charge.n, 1)
        outcome = new_client().once_each([1], lambda _: generator(), int)[0]
        self.assertIsInstance(outcome.error, TypeError)

    def test_a_function_that_ran_and_returns_work_leaves_the_outcome_open(self) -> None:
        charge = Effects()

        async def coroutine() -> None: ...

        async def forgets_to_await() -> Any:
            charge()
            return coroutine()

        async def returns_rows() -> Any:
            charge()
            return (row for row in "ab")

        def rows() -> Any:
            charge()
            return (row for row in "ab")

        class Callable:
            def __call__(self) -> Any:
                return rows()

        for effect in (forgets_to_await, returns_rows, rows, Callable(), lambda: rows()):
            with self.subTest(effect=effect):
                client, charge.n = new_client(), 0

                async def call(client: Any = client, effect: Any = effect) -> None:
                    await client.once("order-7", effect)

                with self.assertRaisesRegex(TypeError, "may have happened"):
                    if asyncio.iscoroutinefunction(effect):
                        asyncio.run(call())
                    else:
                        client.once("order-7", effect)
                with self.assertRaises(semel.Unknown):
                    client.once("order-7", charge)
                self.assertEqual(charge.n, 1)

    def test_a_function_that_returns_work_under_way_leaves_the_outcome_open(self) -> None:
        class Query:
            def __await__(self) -> Any: ...

        def future() -> Any:
            return asyncio.get_running_loop().create_future()

        for effect in (Query, future, Future):
            client = new_client()

            async def call(client: Any = client, effect: Any = effect) -> None:
                client.once("order-7", effect)

            with self.assertRaisesRegex(TypeError, "may have happened"):
                asyncio.run(call())
            with self.assertRaises(semel.Unknown):
                client.once("order-7", Effects())

    def test_a_body_that_sets_work_as_its_result_leaves_the_outcome_open(self) -> None:
        client = new_client()

        async def coroutine() -> None:
            self.fail("it runs")

        async def body() -> None:
            async with client.claim("async") as claim:
                claim.result = coroutine()

        with self.assertRaisesRegex(TypeError, "coroutine"):
            asyncio.run(body())
        with self.assertRaisesRegex(TypeError, "generator"), client.claim("sync") as claim:
            claim.result = (x for x in "ab")
        states = [record["state"] for record in client.lookup(["async", "sync"])]
        self.assertEqual(states, ["unknown", "unknown"])

    def test_errors_can_be_pickled(self) -> None:
        error = semel.InFlight("x")
        error.retry_after = 2
        self.assertEqual(pickle.loads(pickle.dumps(error)).retry_after, 2)


class DecoratorTest(unittest.TestCase):
    def test_the_key_is_a_parameter_or_a_function(self) -> None:
        client, charge = new_client(), Effects()

        @client.idempotent(key="order_id", payload=lambda order_id, amount=1: amount)
        def pay(order_id: str, amount: int = 1) -> Any:
            """Pays."""
            return charge()

        @client.using(scope=uuid.uuid4().hex).idempotent(key=lambda event: event["id"])
        def handle(event: dict[str, str]) -> Any:
            return charge()

        self.assertEqual((pay.__name__, pay.__doc__), ("pay", "Pays."))
        for _ in range(2):
            pay("order-7")
            pay(amount=1, order_id="order-7")
            handle({"id": "order-7"})
        self.assertEqual(charge.n, 2)
        with self.assertRaises(semel.Mismatch):
            pay("order-7", 2)

    def test_coroutine_functions(self) -> None:
        client, charge = new_client(), Effects()

        @client.idempotent(key="order_id")
        async def pay(order_id: str) -> Any:
            self.assertEqual(semel.current().attempt, 1)
            await asyncio.sleep(0)
            return charge()

        async def main() -> list[Any]:
            first = [await pay("order-7"), await pay("order-7")]
            return [*first, await client.once("order-7", pay.__wrapped__)]  # type: ignore

        self.assertEqual(asyncio.run(main()), ["receipt"] * 3)
        self.assertEqual(charge.n, 1)


class ClaimTest(unittest.TestCase):
    def test_a_claim_is_entered_once(self) -> None:
        claim = new_client().claim("order-7")
        with claim:
            pass
        with self.assertRaisesRegex(RuntimeError, "make another one"), claim:
            self.fail("it was entered again")

        async def main() -> None:
            async with claim:
                self.fail("it was entered again")

        with self.assertRaisesRegex(RuntimeError, "make another one"):
            asyncio.run(main())

    def test_a_lease_that_ended_while_the_process_was_stopped_is_lost(self) -> None:
        client = new_client()
        with client.claim("order-7") as claim:
            claim.check()
            with mock.patch("semel.claim.now", lambda: leases.now() + 3600):
                self.assertRaises(semel.LeaseLost, claim.check)
        with client.claim("order-7") as again:
            again.check()  # a duplicate has no lease

    def test_a_claim_that_nobody_waits_for_keeps_its_attempts(self) -> None:
        client = new_client(on_lease_expired="retry", wait="60s")
        claim = client.claim("order-8")
        claim.request().result()
        claim.abandon()
        self.assertEqual(client.once("order-8", lambda: semel.current().attempt), 1)
        with self.assertRaises(TimeoutError):
            client.once("order-9", Effects(TimeoutError()))
        claim = client.claim("order-9")
        claim.request().result()
        claim.abandon()
        self.assertEqual(client.once("order-9", lambda: semel.current().attempt), 3)

    def test_a_claim_whose_answer_was_lost_is_given_back(self) -> None:
        client, post = new_client(retry_for="1ms"), Link.post

        def lost(link: Link, *request: Any) -> Any:
            Link.post = post  # type: ignore[method-assign]
            post(link, *request)
            raise wire.Problem("no-answer", "the answer was lost", "same")

        Link.post = lost  # type: ignore[method-assign]
        try:
            with self.assertRaisesRegex(semel.Unavailable, "nothing ran"):
                client.once("order-7", Effects())
        finally:
            Link.post = post  # type: ignore[method-assign]
        self.assertEqual(client.using(wait="30s").once("order-7", Effects()), "receipt")

    def test_a_claim_whose_first_sending_may_have_arrived_is_given_back(self) -> None:
        later = {"retry": "later", "retry_after_ms": 120_000}
        for problem in (
            {"status": 503, **later},
            {"status": 401, "retry": "no"},
            {"items": [{"error": later}]},
        ):
            with self.subTest(problem=problem), mock.patch.object(lanes, "MOST_LANES", 1):
                end = {"items": [{"state": "absent"}]}
                server = Scripted(granted("7"), DONE, None, problem, granted("8"), end)
                self.addCleanup(server.close)
                client = semel.Client(server.url, retry_for="60s")
                client.once("warm", Effects())  # the connection is kept
                with self.assertRaisesRegex(semel.SemelError, "nothing ran"):
                    client.once("order-7", Effects())
                seen = [server.next() for _ in range(6)]
                claims = [item["claim"] for request in seen for item in request if "claim" in item]
                self.assertEqual([claim["id"] for claim in claims], ["warm"] + ["order-7"] * 3)
                self.assertEqual(len({claim["claim_id"] for claim in claims}), 2)
                self.assertEqual(seen[5][0]["release"]["token"], "8")

    def test_a_completion_that_may_have_arrived_is_told_as_one_that_may_be_recorded(self) -> None:
        problem = {"status": 401, "retry": "no"}
        with mock.patch.object(lanes, "MOST_LANES", 1), self.assertLogs("semel", "WARNING"):
            server = Scripted(granted("7"), None, problem, problem)
            self.addCleanup(server.close)
            with self.assertRaisesRegex(semel.Refused, "may not be recorded") as refused:
                semel.Client(server.url).once("order-7", Effects())
        self.assertTrue(refused.exception.ran)

    def test_an_interrupt_at_the_end_of_a_claim_gives_it_back(self) -> None:
        for moment in ("before", "after"):
            client, keep = new_client(wait="60s"), leases.Leases.keep

            def interrupted(
                all: leases.Leases, claim: Any, moment: str = moment, keep: Any = keep
            ) -> None:
                if moment == "after":
                    keep(all, claim)
                raise KeyboardInterrupt

            with mock.patch.object(leases.Leases, "keep", interrupted):
                with self.assertRaises(KeyboardInterrupt):
                    client.once("order-7", Effects())
            self.assertEqual(client.once("order-7", Effects()), "receipt")

    def test_an_effect_that_never_ends_does_not_keep_its_key(self) -> None:
        client, leave = new_client(lease="300ms"), threading.Event()
        losses: list[BaseException] = []

        def endless() -> str:
            leave.wait(60)
            try:
                semel.current().check()
            except semel.LeaseLost as lost:
                losses.append(lost)
            return "late"

        first = threading.Thread(target=client.using(renew_for="100ms").once, args=("a", endless))
        first.start()
        while client.lookup(["a"])[0]["state"] == "absent":
            pass
        with self.assertRaises(semel.Unknown):
            client.using(wait="60s").once("a", Effects())
        leave.set()
        first.join()
        self.assertIn("renew_for", str(losses[0]))
        self.assertEqual(client.once("a", Effects()), "late")  # it settles the key itself

    def test_without_a_thread_for_its_lease_a_claim_is_given_back(self) -> None:
        client, start = new_client(wait="60s"), threading.Thread.start

        def fail(thread: threading.Thread) -> None:
            if thread.name == "semel-leases":
                raise RuntimeError("can't start new thread")
            start(thread)

        with mock.patch.object(threading.Thread, "start", fail):
            with self.assertRaisesRegex(RuntimeError, "new thread"):
                client.once("order-7", Effects())
        self.assertEqual(client.once("order-7", Effects()), "receipt")

    def test_without_a_thread_for_requests_a_call_fails_and_the_next_one_works(self) -> None:
        client, fail = new_client(), mock.Mock(side_effect=RuntimeError("can't start new thread"))
        with mock.patch.object(threading.Thread, "start", fail):
            with self.assertRaisesRegex(semel.Unavailable, "nothing ran.*new thread"):
                client.once("order-7", Effects())
        self.assertEqual(client.once("order-7", Effects()), "receipt")

    def test_without_a_thread_for_its_completion_an_effect_is_one_that_ran(self) -> None:
        for hold in (True, False):
            client = new_client(on_lease_expired="hold" if hold else "retry")
            fail = mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("no"))

            def effect(client: Any = client, fail: Any = fail) -> None:
                # As if its threads had ended because they were idle.
                client._engine.lanes = lanes.Lanes(client._engine._address, 60)
                fail.start()

            with self.assertRaisesRegex(semel.Unavailable, "the effect ran") as unrecorded:
                try:
                    client.once("order-7", effect)
                finally:
                    fail.stop()
            self.assertTrue(unrecorded.exception.ran)
            self.assertEqual(client.lookup(["order-7"])[0]["state"], "claimed")

    def test_a_claim_is_repeated_while_its_lease_lasts(self) -> None:
        client, timeouts, post = new_client(lease="30s"), [], Link.post

        def timed(link: Link, path: str, body: bytes, timeout: float) -> Any:
            timeouts.append((timeout, b'"claim"' in body))
            return post(link, path, body, timeout)

        with mock.patch.object(Link, "post", timed):
            client.once("order-7", Effects())
        self.assertEqual(timeouts, [(10, True), (60, False)])

    def test_a_cancelled_task_leaves_its_key_unknown(self) -> None:
        client = new_client()

        async def main() -> None:
            began = asyncio.Event()

            async def effect() -> None:
                began.set()
                await asyncio.sleep(600)

            task = asyncio.ensure_future(client.once("order-7", effect))
            await began.wait()
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task

        asyncio.run(main())
        self.assertEqual(client.lookup(["order-7"])[0]["state"], "unknown")

    def test_a_cancelled_claim_is_given_back(self) -> None:
        client = new_client(wait="60s")

        async def main() -> None:
            claim = client.claim("order-7")
            task = asyncio.ensure_future(claim.__aenter__())
            await asyncio.sleep(0)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task

        asyncio.run(main())
        self.assertEqual(client.once("order-7", Effects()), "receipt")

    def test_an_effect_that_lost_its_lease_is_told(self) -> None:
        client, operator = new_client(lease="1s"), new_client()
        operator.policy = client.policy

        def take_away() -> None:
            operator._engine.ask("/v1/remove", "{" + removed + "}")

        removed = wire.key_members(client.policy.scope, "order-7") + ',"reason":"test"'

        async def main() -> None:
            async with client.claim("order-7"):
                await asyncio.to_thread(take_away)
                await asyncio.sleep(600)  # it is cancelled

        with self.assertRaisesRegex(semel.LeaseLost, "cancelled"):
            asyncio.run(main())
        lost = threading.Event()
        with self.assertRaises(semel.LeaseLost), client.claim("order-7") as claim:
            claim.lose = lambda why: (setattr(claim, "lost", True), lost.set())  # type: ignore
            take_away()
            lost.wait()
            claim.check()

    def test_a_completion_of_a_key_that_was_taken_over_is_a_lost_lease(self) -> None:
        client = new_client()
        removed = wire.key_members(client.policy.scope, "order-7") + ',"reason":"test"'
        with (
            self.assertRaisesRegex(semel.LeaseLost, "the effect ran"),
            client.claim("order-7") as claim,
        ):
            client._engine.ask("/v1/remove", "{" + removed + "}")
            claim.result = "receipt"

    def test_a_forked_child_does_not_end_the_claim_of_its_parent(self) -> None:
        client = new_client()
        with client.claim("order-7"):
            child = os.fork()
            if child == 0:
                try:
                    client.claim("order-7").__enter__()
                except semel.InFlight:
                    os._exit(7)
                os._exit(1)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 7)
        self.assertEqual(client.lookup(["order-7"])[0]["state"], "done")


class BatchTest(unittest.TestCase):
    def test_each_item_has_its_outcome(self) -> None:
        client, ran = new_client(), []

        def handle(item: Any) -> Any:
            ran.append(item)
            if item == 3:
                raise KeyError(item)
            if item == 4:
                raise semel.Permanent("never")
            return item

        client.once(2, handle, "earlier")
        outcomes = client.once_each(
            [1, 2, 1, 3, 4, None],
            handle,
            key=lambda item: item,  # type: ignore[arg-type]
        )
        self.assertEqual([o.value for o in outcomes], [1, "earlier", 1, None, None, None])
        self.assertEqual([o.replayed for o in outcomes], [False, True, True, False, False, False])
        self.assertEqual([o.complete for o in outcomes], [True, True, True, False, True, False])
        self.assertEqual(
            [type(o.error) for o in outcomes[3:]], [KeyError, semel.Permanent, TypeError]
        )
        self.assertEqual(ran, ["earlier", 1, 3, 4])

    def test_a_group_stops_at_an_item_that_is_not_complete(self) -> None:
        client, ran = new_client(), []

        def handle(item: str) -> None:
            ran.append(item)
            if item in ("a2", "c1"):
                raise KeyError(item)

        items = ["a1", "a2", "b1", "a3", "c1", "a1", "b2", "c2"]
        outcomes = client.once_each(
            items, handle, key=lambda item: item, group=lambda item: item[0]
        )
        self.assertEqual(ran, ["a1", "a2", "b1", "c1", "b2"])
        kinds = " ".join(type(outcome.error).__name__ for outcome in outcomes)
        self.assertEqual(
            kinds, "NoneType KeyError NoneType Skipped KeyError NoneType NoneType Skipped"
        )
        states = [record["state"] for record in client.lookup(items)]
        self.assertEqual(
            states, ["done", "absent", "done", "absent", "absent", "done", "done", "absent"]
        )

    def test_an_interrupted_batch_gives_back_what_did_not_begin(self) -> None:
        client = new_client(wait="60s")  # what is given back is not waited for

        def handle(item: int) -> None:
            if item == 1:
                raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            client.once_each([0, 1, 2], handle, key=int)
        self.assertEqual(client.once(2, Effects()), "receipt")
        with self.assertRaises(semel.Unknown):
            client.once(1, Effects())

    def test_a_batch_that_is_interrupted_while_it_claims_gives_all_back(self) -> None:
        client, enter = new_client(wait="60s"), semel.Claim.__enter__

        def interrupted(claim: semel.Claim) -> semel.Claim:
            if claim.key == 1:
                raise KeyboardInterrupt
            return enter(claim)

        with mock.patch.object(semel.Claim, "__enter__", interrupted):
            with self.assertRaises(KeyboardInterrupt):
                client.once_each([0, 1, 2], Effects(), key=int)
        for key in range(3):
            self.assertEqual(client.once(key, Effects()), "receipt")

    def test_the_effect_of_a_claim_that_was_lost_before_it_began_does_not_run(self) -> None:
        client, ran = new_client(), []

        def handle(item: int) -> None:
            ran.append(item)
            removed = wire.key_members(client.policy.scope, 1) + ',"reason":"test"'
            client._engine.ask("/v1/remove", "{" + removed + "}")
            late.start()

        late = mock.patch("semel.claim.now", lambda: leases.now() + 3600)
        try:
            outcomes = client.once_each([0, 1], handle, key=int)
        finally:
            late.stop()
        self.assertEqual(ran, [0])
        self.assertIsInstance(outcomes[1].error, semel.InFlight)
        self.assertEqual(client.once(1, Effects()), "receipt")

    def test_calls_that_arrive_together_share_a_request(self) -> None:
        client, requests = new_client(), []
        all_asked, post = threading.Event(), Link.post

        def counted(link: Link, path: str, body: bytes, timeout: float) -> Any:
            all_asked.wait()
            requests.append(body.count(b'"claim"'))
            return post(link, path, body, timeout)

        Link.post = counted  # type: ignore[method-assign]
        try:
            claims = [client.claim(n) for n in range(1500)]
            for claim in claims:
                claim.request()
            all_asked.set()
            for claim in claims:
                claim.__enter__()
        finally:
            Link.post = post  # type: ignore[method-assign]
        self.assertEqual(sum(requests), 1500)
        self.assertLessEqual(len(requests), lanes.MOST_LANES + 2)


class RenewalTest(unittest.TestCase):
    """Renewals against a server that a test makes."""

    def held(self) -> Any:
        return mock.Mock(members='"id":1', token="7", lease=3.0, valid_until=leases.now() + 3)

    def test_a_server_that_takes_few_items_gets_them_in_more_requests(self) -> None:
        def post(path: str, body: bytes, timeout: float) -> Any:
            n = body.count(b'"token"')
            if n > 2:
                raise wire.Problem("invalid-request", "at most 2 items", "no")
            return {"items": [{"lease_ms": 9000}] * n}

        claims = [self.held() for _ in range(7)]
        renewals = leases.Leases(mock.Mock(), 1)
        renewals._held = {id(claim): claim for claim in claims}
        renewals._renew_held(mock.Mock(post=post), claims)
        for claim in claims:
            claim.lose.assert_not_called()
            self.assertGreater(claim.valid_until, leases.now() + 4)

    def test_what_follows_a_dropped_lease_waits_for_the_renewal_under_way(self) -> None:
        claim, events = self.held(), []

        def post(path: str, body: bytes, timeout: float) -> Any:
            renewals.drop(claim, lambda: events.append("extend 1ms"))
            events.append("renewed")
            return {"items": [{"lease_ms": 9000}]}

        renewals = leases.Leases(mock.Mock(), 1)
        renewals._held[id(claim)] = claim
        renewals._renew_held(mock.Mock(post=post), [claim])
        renewals._renew_held(mock.Mock(post=post), [claim])  # it is not asked for again
        renewals.drop(claim, lambda: events.append("at once"))
        self.assertEqual(events, ["renewed", "extend 1ms", "at once"])

    def test_a_lease_is_renewed_until_its_completion_is_answered(self) -> None:
        client, held = new_client(), []

        def seen(link: Link, path: str, body: bytes, timeout: float) -> Any:
            if b'"complete"' in body:
                held.append(len(client._engine.leases._held))
            return post(link, path, body, timeout)

        post = Link.post
        with mock.patch.object(Link, "post", seen):
            client.once("order-7", Effects())
        self.assertEqual(held, [1])
        deadline = leases.now() + 60
        while client._engine.leases._held and leases.now() < deadline:
            threading.Event().wait(0.01)
        self.assertEqual(client._engine.leases._held, {})


class AnswerTest(unittest.TestCase):
    def test_threads_that_were_idle_end_and_start_again(self) -> None:
        idle, lanes.IDLE = lanes.IDLE, 0.001
        try:
            client = new_client()
            for n in range(300):  # many calls come while a thread ends
                self.assertEqual(client.once(n, Effects()), "receipt")
        finally:
            lanes.IDLE = idle

    def test_an_answer_that_cannot_be_read_is_asked_for_again(self) -> None:
        post = Link.post
        for odd in (
            {},
            {"items": {}},
            {"items": [7]},
            {"items": [{"error": 7}]},
            {"items": [{"error": {"status": "x", "retry": 1, "retry_after_ms": "x"}}]},
            {"items": [{"decision": "fresh"}]},
            {"items": [{"decision": "fresh", "token": "7", "lease_ms": "x"}]},
            {"items": [{"decision": "fresh", "token": "x", "lease_ms": 9000}]},
            {"items": [{"decision": "fresh", "token": "7", "lease_ms": 9000, "attempt": "x"}]},
        ):
            client, asked = new_client(), []

            def first(link: Link, *request: Any, odd: Any = odd, asked: Any = asked) -> Any:
                asked.append(request)
                return odd if len(asked) == 1 else post(link, *request)

            Link.post = first  # type: ignore[method-assign]
            try:
                self.assertEqual(client.once("order-7", Effects()), "receipt", odd)
            finally:
                Link.post = post  # type: ignore[method-assign]
            self.assertEqual(asked[0], asked[1], "the repetition is another request")


class WireTest(unittest.TestCase):
    def test_keys(self) -> None:
        for key, text in (
            ("é", '"id":"\\u00e9"'),
            (2**64 - 1, '"id":18446744073709551615'),
            (Decimal("1.50"), '"id":1.50'),
            (True, '"id":true'),
            (("a", 1, False), '"id":["a",1,false]'),
            (b"\x00\xff", '"id_base64":"AP8="'),
            (enum.IntEnum("Kind", {"A": 7}).A, '"id":7'),
            (enum.Enum("Kind", {"A": "a"}, type=str).A, '"id":"a"'),
            (uuid.UUID(int=7), '"id":"00000000-0000-0000-0000-000000000007"'),
        ):
            self.assertEqual(wire.key_members("s", key), '"scope":"s",' + text)
        for wrong in (None, {}, float("nan"), (b"x",), object()):
            with self.assertRaises(TypeError):
                wire.key_members("s", wrong)  # type: ignore[arg-type]

    def test_durations(self) -> None:
        self.assertEqual(wire.seconds("1h30m"), 5400)
        self.assertEqual(wire.seconds(timedelta(days=1)), 86400)
        self.assertEqual(wire.duration(0.0001), "1ms")
        self.assertEqual(wire.duration("7d"), "7d")


if __name__ == "__main__":
    unittest.main()
