"""Calls for many items, whose claims share a request."""

from __future__ import annotations

from collections.abc import Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Callable, Generic, Optional, TypeVar

from . import errors
from .claim import Claim

T = TypeVar("T")
Item = TypeVar("Item")


@dataclass
class Outcome(Generic[T]):
    """How the call for one item ended."""

    value: Optional[T] = None
    error: Optional[Exception] = None
    #: The effect happened in an earlier call.
    replayed: bool = False

    @property
    def complete(self) -> bool:
        """The effect is complete, or its failure is on record: acknowledge the message."""
        return self.error is None or is_complete(self.error)


def is_complete(error: Exception) -> bool:
    """Reports whether a message whose call raised this error may be acknowledged."""
    return isinstance(error, errors.Permanent) or getattr(error, "complete", False)


@dataclass
class Task(Generic[T, Item]):
    """An item, and its claim unless its key cannot be found."""

    item: Item
    group: Optional[Hashable] = None
    claim: Optional[Claim] = None
    outcome: Outcome[T] = field(default_factory=Outcome)


def run(tasks: list[Task[T, Item]], fn: Callable[[Item], T]) -> None:
    """Gives each task its outcome. Tasks with the same key run in different rounds."""
    blocked: set[Hashable] = set()
    while tasks:
        this: list[Task[T, Item]] = []
        later: list[Task[T, Item]] = []
        keys = set()
        for task in tasks:
            again = task.claim is not None and task.claim.members in keys
            (later if again else this).append(task)
            if task.claim is not None:
                keys.add(task.claim.members)
        _round(this, fn, blocked)
        tasks = later


def _round(tasks: list[Task[T, Item]], fn: Callable[[Item], T], blocked: set[Hashable]) -> None:
    claimed = [(task, task.claim) for task in tasks if task.claim is not None]
    sent: list[tuple[Task[T, Item], Claim, Optional[Future[Any]]]] = []
    try:
        for _, claim in claimed:
            claim.request()
        for task, claim in claimed:  # from here on, their leases are renewed
            outcome = task.outcome
            try:
                claim.__enter__()
                outcome.replayed, outcome.value = not claim.fresh, claim.result
            except Exception as error:
                outcome.error, outcome.replayed = error, getattr(error, "replayed", False)
        for task in tasks:
            if task.claim is not None and task.claim.fresh:
                sent.append((task, task.claim, _effect(task, task.claim, fn, blocked)))
            if task.group is not None and not task.outcome.complete:
                blocked.add(task.group)
    finally:
        for _, claim in claimed:  # after an interrupt, those that did not begin
            claim.abandon()
    for task, claim, end in sent:
        try:
            claim.wait(end)
        except Exception as error:
            task.outcome.error = error


def _effect(
    task: Task[T, Item], claim: Claim, fn: Callable[[Item], T], blocked: set[Hashable]
) -> Optional[Future[Any]]:
    """Takes the effect of a task, and sends how it ended."""
    try:
        if task.group in blocked:
            raise errors.Skipped(f"semel: {claim}: an item before it in its group is not complete")
        claim.take_effect(fn, task.item)
        task.outcome.value = claim.result
    except Exception as error:
        task.outcome.error = error
    except BaseException as stop:
        claim.end(stop)
        raise
    return claim.end(task.outcome.error)
