"""The errors that a caller must know."""

from __future__ import annotations


class SemelError(Exception):
    """The base of all errors of this package, except Permanent."""

    #: The same delivery may succeed later, without a person.
    retry = False
    #: The effect is complete: a message may be acknowledged, although there is no result.
    complete = False
    #: The call that holds the key, or had it.
    holder = ""
    #: Where that call came from, and its request, as far as it said so.
    origin = ""
    request_id = ""
    #: Seconds after which a repetition makes sense.
    retry_after = 0.0


class InFlight(SemelError):
    """Another call holds the key now. Nothing ran. Repeat after `retry_after` seconds."""

    retry = True


class Unknown(SemelError):
    """It is not known whether the effect happened. Nothing ran now.

    A person looks whether the effect is there, and settles the key. Raise this error in
    an effect that cannot know its outcome, for instance after a timeout of its own.
    """


class Mismatch(SemelError):
    """The key was used with another payload. Nothing ran."""


class Late(SemelError):
    """The message is older than the window, and its key is forgotten. Nothing ran."""


class LeaseLost(SemelError):
    """The effect ran or was cancelled, and another call may have had the key meanwhile.

    The effect may have happened in part, completely, or twice.
    """

    retry = True


class StaleToken(SemelError):
    """The token does not hold the key: it was taken over, settled or removed."""


class NotKept(SemelError):
    """The effect is complete, and its result was not kept, so there is none to return."""

    complete = True


class Unavailable(SemelError):
    """The server did not answer in time. `ran` says whether the effect ran before.

    Then its completion may be recorded, or not.
    """

    retry = True
    ran = False


class Refused(SemelError):
    """The server refuses the request: its form, its size or its credentials.

    `ran` says whether the effect ran before. Then its completion may not be recorded.
    """

    ran = False
    #: The last part of the problem's type, such as key-invalid.
    problem = ""


class Skipped(SemelError):
    """An item before it in its group is not complete. Nothing ran."""

    retry = True


class Permanent(Exception):
    """A failure of an effect that no repetition can fix. Raise it in the effect.

    It is kept as the result of the key. Each duplicate gets it again, with `replayed` set.
    """

    replayed = False
