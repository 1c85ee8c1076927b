"""The driver of this client for test/clients, whose driver_test.go has the protocol.

The argument is threads or asyncio.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import json
import os
import sys
import threading
import time
import urllib.request
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import semel

ERRORS = {
    semel.InFlight: "in_flight",
    semel.Unknown: "unknown",
    semel.Mismatch: "mismatch",
    semel.Late: "late",
    semel.LeaseLost: "lease_lost",
    semel.StaleToken: "stale_token",
    semel.Unavailable: "unavailable",
    semel.NotKept: "not_kept",
    semel.Permanent: "permanent",
    semel.Refused: "refused",
}
wall = time.time
writing = threading.Lock()


class EffectError(Exception):
    """The effect failed, and did not happen."""


def effect(journal: str, key: str) -> Any:
    """Takes the effect. The journal has it, and says how it ends."""
    claim = semel.current()
    entry = {"key": key, "attempt": claim.attempt, "token": claim.token, "pid": os.getpid()}
    with urllib.request.urlopen(journal, json.dumps(entry).encode()) as response:
        answer = json.loads(response.read())
    if "fail" in answer:
        kinds = {"permanent": semel.Permanent, "unknown": semel.Unknown}
        raise kinds.get(answer["fail"], EffectError)("as the journal says")
    return answer["result"]


async def effect_async(journal: str, key: str) -> Any:
    return await asyncio.to_thread(effect, journal, key)


@functools.lru_cache(None)
def engine(url: str, timeout: str) -> semel.Client:
    return semel.Client(url, timeout=float(timeout.rstrip("s")))


def client(command: dict[str, Any]) -> semel.Client:
    options = ("scope", "on_lease_expired", "lease", "window", "wait", "retry_for")
    policy = {name: command[name] for name in options}
    return engine(command["url"], command["timeout"]).using(**policy)


def parse(id: Any) -> Any:
    return base64.b64decode(id["base64"]) if isinstance(id, dict) else id


def claim(command: dict[str, Any]) -> semel.Claim:
    age = command.get("age")
    sent = datetime.now(timezone.utc) - timedelta(seconds=age) if age else None
    payload = command.get("payload")
    return client(command).claim(parse(command["id"]), payload=payload, time=sent)


def ended(call: Any, *args: Any) -> dict[str, Any]:
    try:
        return {"value": call(*args)}
    except Exception as error:
        return failed(error)


def failed(error: BaseException) -> dict[str, Any]:
    return {"error": ERRORS.get(type(error), "effect"), "message": repr(error)}


def once(command: dict[str, Any]) -> dict[str, Any]:
    return ended(lambda: claim(command).run(effect, command["journal"], command["key"]))


async def once_async(command: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"value": await claim(command).run(effect_async, command["journal"], command["key"])}
    except Exception as error:
        return failed(error)


def fork(command: dict[str, Any], is_async: bool) -> list[Any]:
    """Makes the call in a child that has the client of its parent."""
    client(command)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        outcome = asyncio.run(once_async(command)) if is_async else once(command)
        os.write(writer, json.dumps([outcome]).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        outcomes = json.loads(pipe.read())
    os.waitpid(child, 0)
    return outcomes


def batch(command: dict[str, Any]) -> list[Any]:
    calls = list(zip(command["ids"], command["keys"]))
    outcomes = client(command).once_each(
        calls, lambda call: effect(command["journal"], call[1]), key=lambda call: parse(call[0])
    )
    return [{"value": o.value} if o.error is None else failed(o.error) for o in outcomes]


def write(command: dict[str, Any], outcomes: list[Any]) -> None:
    line = (json.dumps({"call": command["call"], "outcomes": outcomes}) + "\n").encode()
    with writing:  # a pipe takes a long line in parts
        while line:
            line = line[os.write(1, line) :]


def run(command: dict[str, Any]) -> None:
    """Runs a command with threads."""
    if command["op"] == "fork":
        return write(command, fork(command, False))
    if command["op"] == "batch":
        return write(command, batch(command))
    outcomes: list[Any] = []
    threads = [
        threading.Thread(target=lambda: outcomes.append(once(command))) for _ in range(command["n"])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    write(command, outcomes)


async def run_async(command: dict[str, Any]) -> None:
    if command["op"] == "fork":
        return write(command, await asyncio.to_thread(fork, command, True))
    if command["op"] == "batch":
        # Calls that arrive together share requests. Those of one key run one after the other.
        command["wait"] = "60s"
        ids = zip(command["ids"], command["keys"])
        calls = [{**command, "id": id, "key": key} for id, key in ids]
        return write(command, await asyncio.gather(*map(once_async, calls)))
    calls = [once_async(command) for _ in range(command["n"])]
    write(command, await asyncio.gather(*calls))


async def main_async() -> None:
    tasks = set()
    while line := await asyncio.to_thread(sys.stdin.readline):
        command = read(line)
        task = asyncio.create_task(run_async(command))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


def read(line: str) -> dict[str, Any]:
    command = json.loads(line, parse_float=Decimal)
    command["age"] = float(command.get("age", 0))
    offset = command.get("clock", 0)
    time.time = lambda: wall() + offset
    return command


def main() -> None:
    while line := sys.stdin.readline():
        threading.Thread(target=run, args=(read(line),)).start()


if __name__ == "__main__":
    if sys.argv[1] == "asyncio":
        asyncio.run(main_async())
    else:
        main()
