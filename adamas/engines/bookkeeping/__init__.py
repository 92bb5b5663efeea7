"""The fast engine: one forward, one backward, no per-example gradient of a whole model.

`engine` answers the questions; `recording` and `tracking` follow a forward call by call; `separation` is the
table that proves that examples do not mix; `uses` swaps calls that meet a weight; `records` and the files
beside it take norms and sums from what is left.
"""

from adamas.engines.bookkeeping.engine import Bookkeeping

__all__ = ["Bookkeeping"]
