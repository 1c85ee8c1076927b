"""Middleware for webhook receivers in Django."""

from __future__ import annotations

from typing import Any, Callable, Optional

from django.conf import settings
from django.http import HttpRequest, HttpResponse

from .client import Client
from .errors import SemelError
from .webhook import KeyRule, NotHappened, Response, bounded, key_of


class Once:
    """Lets each POST to a path of SEMEL_ONCE, and to paths below it, take effect once.

        MIDDLEWARE = [..., "semel.django.Once"]
        SEMEL_CLIENT = semel.Client(scope="webhooks")
        SEMEL_ONCE = {"/webhooks/": "Webhook-Id"}

    A repetition gets the first answer. A request without the header gets 400. An answer
    with an error gives the key back, so that the sender's repetition runs. A streaming answer
    is read to its end before it is sent. A view without an answer keeps its key for the
    `renew_for` of the client, by default 5 minutes; then the outcome is open. Put it last.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response
        client: Client = getattr(settings, "SEMEL_CLIENT", None) or Client(scope="webhooks")
        self._client = bounded(client)
        self._rules: dict[str, KeyRule] = settings.SEMEL_ONCE

    def __call__(self, request: HttpRequest) -> HttpResponse:
        rule = self._rule(request)
        if rule is None:
            return self._get_response(request)
        headers = {name.lower(): value for name, value in request.headers.items()}
        id = key_of(rule, request.path, headers, request.body)
        if id is None and isinstance(rule, str):
            return HttpResponse(f"the header {rule} is missing", "text/plain", 400)
        if id is None:
            return self._get_response(request)
        error: Optional[Exception] = None
        claim = self._client.claim(id, origin=request.path)
        try:
            with claim:
                if not claim.fresh:
                    return _django(Response.replay(claim.result))
                with claim.running():
                    response = self._get_response(request)
                error = getattr(request, "_semel_error", None)
                if error is not None:
                    raise error
                body = b"".join(response) if response.streaming else response.content
                if response.streaming:
                    response.streaming_content = [body]
                own = Response(response.status_code, list(response.items()), body)
                claim.result = own.kept()
                if not own.happened:
                    raise NotHappened
        except NotHappened:
            pass
        except SemelError as refused:
            return _django(Response.refusal(refused))
        except Exception as raised:
            if raised is not error:
                raise
        return response

    def process_exception(self, request: HttpRequest, error: Exception) -> None:
        """Django makes a response of an error of the view. The claim must know the error."""
        request._semel_error = error

    def _rule(self, request: HttpRequest) -> Optional[KeyRule]:
        if request.method != "POST":
            return None
        path = request.path.rstrip("/") + "/"
        rules = (rule for at, rule in self._rules.items() if path.startswith(at.rstrip("/") + "/"))
        return next(rules, None)


def _django(response: Response) -> HttpResponse:
    answer: Any = HttpResponse(response.body, status=response.status)
    for name, value in response.headers:
        answer[name] = value
    return answer
