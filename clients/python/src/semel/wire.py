"""The forms that keys, results and refusals have in JSON."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import math
import re
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, NoReturn, Union
from uuid import UUID

from . import errors

Scalar = Union[str, int, float, Decimal, bool, UUID]
#: The id of a key. "42" and 42 are different ids. A tuple is one composite id.
Id = Union[Scalar, bytes, "tuple[Scalar, ...]", "list[Scalar]"]
#: Seconds, a timedelta, or a text such as "30s" or "7d".
Duration = Union[float, timedelta, str]


def key_members(scope: str, key: Id) -> str:
    """Returns the members that name a key, without braces."""
    if isinstance(key, bytes):
        text = '"id_base64":"' + base64.b64encode(key).decode() + '"'
    elif isinstance(key, (tuple, list)):
        text = '"id":[' + ",".join(map(_scalar, key)) + "]"
    else:
        text = '"id":' + _scalar(key)
    return '"scope":' + json.dumps(scope) + "," + text


def _scalar(value: Scalar) -> str:
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, UUID):
        return json.dumps(str(value))
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)  # str of an enum is its name in some versions
    if isinstance(value, float) and math.isfinite(value):
        return float.__repr__(value)  # the shortest digits that read back the same
    if isinstance(value, Decimal) and value.is_finite():
        return str(value)
    raise TypeError(
        f"semel: {value!r} is no id: expected str, int, float, Decimal, bool, UUID, bytes, "
        "or a tuple of them without bytes"
    )


@functools.lru_cache(256)
def seconds(value: Duration) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        if not re.fullmatch(r"(\d+(\.\d+)?(ms|s|m|h|d))+", value):
            raise ValueError(f'semel: {value!r} is no duration: expected "30s", "12h" or "7d"')
        units = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
        parts = re.findall(r"([\d.]+)(ms|s|m|h|d)", value)
        return sum(float(number) * units[unit] for number, unit in parts)
    return value


@functools.lru_cache(256)
def duration(value: Duration) -> str:
    """Returns a duration as the server reads it. It knows more words than this package."""
    return value if isinstance(value, str) else f"{math.ceil(seconds(value) * 1000)}ms"


def timestamp(value: datetime) -> str:
    if value.tzinfo is None:
        raise ValueError("semel: the time has no time zone: use datetime.now(timezone.utc)")
    return value.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")


def fingerprint(payload: Any) -> str:
    """Returns the digest of a payload: of bytes as they are, of all else as JSON."""
    if not isinstance(payload, bytes):
        payload = json.dumps(payload, sort_keys=True, separators=(",", ":")).encode()
    return "sha256:" + hashlib.sha256(payload).hexdigest()


def result_value(result: dict[str, Any]) -> Any:
    """Returns the value of a kept result, which this package writes as JSON."""
    if "base64" in result:
        return base64.b64decode(result["base64"])  # another program wrote it
    text = result.get("text")
    try:
        return json.loads(text) if text is not None else None
    except ValueError:
        return text


class Problem(Exception):
    """A refusal of the server, or its silence. `retry` is no, same or later."""

    def __init__(
        self, kind: str, detail: str, retry: str, after: float = 0, holder: str = ""
    ) -> None:
        super().__init__(detail)
        self.kind, self.detail, self.retry, self.after, self.holder = (
            kind,
            detail,
            retry,
            after,
            holder,
        )

    @staticmethod
    def of(document: Any, status: int = 0, after: float = 0) -> Problem:
        """Reads a problem document. Another server in between may have answered without one, and
        this one may have done what it was asked."""
        document = document if isinstance(document, dict) else {}
        stated, pause = document.get("status"), document.get("retry_after_ms")
        status = stated if isinstance(stated, int) else status
        after = pause / 1000 if isinstance(pause, (int, float)) else after
        kind = str(document.get("type", "")).rpartition("/")[2]
        detail = document.get("detail") or document.get("title") or f"HTTP status {status}"
        retry = document.get("retry")
        if retry not in ("no", "same", "later"):
            passes = status in (408, 425, 429)
            retry = "same" if status == 0 or status >= 500 else "later" if passes else "no"
        return Problem(kind, str(detail), retry, after, str(document.get("holder", "")))

    def raise_for(self, what: str, ran: bool = False) -> NoReturn:
        """Raises the error that a caller knows. `what` says what failed."""
        error: errors.SemelError
        if self.kind == "stale-token":
            error = errors.StaleToken(f"semel: {what}: {self.detail}")
        elif self.retry == "no":
            error = errors.Refused(f"semel: {what}: {self.detail} ({self.kind or 'refused'})")
            error.ran, error.problem = ran, self.kind
        else:
            error = errors.Unavailable(f"semel: {what}: {self.detail}")
            error.ran = ran
        error.holder, error.retry_after = self.holder, self.after
        raise error from self
