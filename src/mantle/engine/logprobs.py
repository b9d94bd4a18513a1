"""How likely was a token to the model itself? Natural logarithms of the raw distribution.

Invariant: temperature 1, before penalties, bias and truncation; floored at
`limits.LOGPROB_FLOOR`, so never NaN or infinite; alternatives sorted by (−logprob, id).
"""

import math

import numpy as np
from numpy.typing import NDArray

from mantle.core import limits
from mantle.engine.port import LogprobEntry

LogitRow = NDArray[np.float32]
IdArray = NDArray[np.int64]


def logprob_entry(row: LogitRow, token_id: int, top_count: int, scratch: LogitRow) -> LogprobEntry:
    """Log-probability of `token_id` under the raw logits, and of the `top_count` likeliest."""
    peak = float(row.max())
    np.subtract(row, np.float32(peak), out=scratch)
    np.exp(scratch, out=scratch)
    log_total = peak + math.log(float(scratch.sum()))
    top_ids = likeliest(row, top_count, peak) if top_count else ()
    return LogprobEntry(
        token_id=token_id,
        logprob=_floored(float(row[token_id]) - log_total),
        top=[(int(top_id), _floored(float(row[top_id]) - log_total)) for top_id in top_ids],
    )


def likeliest(row: LogitRow, count: int, peak: float) -> IdArray:
    """The `count` ids with the largest logits, largest first, lower id first among equals."""
    ids = ids_near_peak(row, peak, count)
    values = row[ids]
    if len(ids) > 4 * count:
        bound = -np.partition(-values, count - 1)[count - 1]
        ids = ids[values >= bound]
        values = row[ids]
    return ids[np.argsort(-values, kind="stable")[:count]]


def ids_near_peak(row: LogitRow, peak: float, count_min: int) -> IdArray:
    """Ids (ascending) of all logits above some bound, at least `count_min` of them.

    A few compares of the whole row, cheaper than partitioning it.
    """
    for depth in (4.0, 8.0, 16.0):
        ids = np.flatnonzero(row >= np.float32(peak - depth))
        if len(ids) >= count_min:
            return ids
    return np.arange(len(row))


def _floored(logprob: float) -> float:
    return min(0.0, max(limits.LOGPROB_FLOOR, logprob))
