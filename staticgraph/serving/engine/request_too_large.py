"""The error for a request that no queue could take.

It has its own file because the processes that read requests import it, and they import no torch.
"""


class RequestTooLarge(ValueError):
    """A request has more graphs than the queue holds; it was not enqueued."""
