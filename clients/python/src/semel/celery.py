"""A decorator for Celery tasks."""

from __future__ import annotations

import functools
from typing import Any, Callable, Optional, TypeVar, Union

from celery import current_task

from .client import Client, finder
from .errors import NotKept, SemelError
from .wire import Id

F = TypeVar("F", bound=Callable[..., Any])


def once(client: Client, key: Union[str, Callable[..., Id], None] = None) -> Callable[[F], F]:
    """Decorates the function of a task, below `@app.task`, so that it runs once for each key.

    `key` is the name of a parameter, or a function of all arguments. Without it, the key is
    the id of the task, which a redelivery has too. A task whose key is in flight is retried
    later. Set acks_late and reject_on_worker_lost, or the broker forgets the task of a worker
    that dies.
    """

    def decorate(fn: F) -> F:
        key_of: Optional[Callable[..., Id]] = finder(fn, key) if key else None

        @functools.wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            request = current_task.request
            id = key_of(*args, **kwargs) if key_of else (current_task.name, request.id)
            claim = client.claim(id, origin=current_task.name, request_id=request.id or "")
            try:
                return claim.run(fn, *args, **kwargs)
            except NotKept:
                return None  # the effect is complete
            except SemelError as error:
                if not error.retry:
                    raise
                countdown = max(error.retry_after, 1)
                raise current_task.retry(
                    exc=error, countdown=countdown, max_retries=None
                ) from error

        return call  # type: ignore[return-value]

    return decorate
