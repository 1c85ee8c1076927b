"""Take the effect of a message, a request or a call once, with a server `semel serve`.

client = semel.Client(scope="payments")

@client.idempotent(key="order_id")
def charge(order_id, amount): ...
"""

from .batch import Outcome, is_complete
from .claim import Claim, Policy, current
from .client import Client
from .errors import (
    InFlight,
    Late,
    LeaseLost,
    Mismatch,
    NotKept,
    Permanent,
    Refused,
    SemelError,
    Skipped,
    StaleToken,
    Unavailable,
    Unknown,
)

__all__ = [
    "Claim",
    "Client",
    "InFlight",
    "Late",
    "LeaseLost",
    "Mismatch",
    "NotKept",
    "Outcome",
    "Permanent",
    "Policy",
    "Refused",
    "SemelError",
    "Skipped",
    "StaleToken",
    "Unavailable",
    "Unknown",
    "current",
    "is_complete",
]
