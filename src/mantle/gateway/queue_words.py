"""What does a client that waits read? Where it stands in its own queue, and for how long still.

Invariant: one wording for comments and one for headers, whatever the wire format; nothing when the
request does not wait.
"""

from mantle.gateway.exchange import Header
from mantle.scheduler.port import QueueView


def queue_words(view: QueueView) -> str:
    """`queued position=3 waited_s=2.0 estimated_wait_s=4.2`; position 0 is next."""
    words = f"queued position={view.position} waited_s={view.waited_ms / 1e3:.1f}"
    if view.estimated_wait_ms is not None:
        words += f" estimated_wait_s={view.estimated_wait_ms / 1e3:.1f}"
    return words


def queue_headers(view: QueueView | None) -> list[Header]:
    """The same, once, with the status line."""
    if view is None:
        return []
    headers = [(b"x-mantle-queue-position", b"%d" % view.position)]
    if view.estimated_wait_ms is not None:
        headers.append((b"x-mantle-estimated-wait-ms", b"%.0f" % view.estimated_wait_ms))
    return headers
