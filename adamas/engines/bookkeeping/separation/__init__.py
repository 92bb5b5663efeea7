"""The table of functions that treat each example by itself, and the rules that find the examples.

A row is a family of functions and a rule. The rule looks at one call that really happened and returns the
place of the examples in its result, or raises `Mixing` where the result of one example may depend on another.
A function without a row is not proven. A row is right if, for the places that it returns, the function
applied to a batch equals the function applied to each example alone; the tests compare rows with
`torch.func.vmap`. Since the rules speak of functions whose backward is torch's own, gradients are separated
as the values are.

table        which functions have which rule
call         one call, and what is known of its arguments
elementwise, axes, products, layers, views, indexing, gathering, factories, gradients    the rules
"""

from adamas.engines.bookkeeping.separation.call import CONSTANT, MARK, PACKED_SIZES, Call, Mark, Mixing, Picks
from adamas.engines.bookkeeping.separation.table import (
    CUTS,
    IN_PLACE,
    INDEXING,
    KEEPS_VALUES,
    MAKES,
    READS_NO_VALUES,
    TABLE,
    TAKES_COUNTS,
    TAKES_MIXED,
)

__all__ = [
    "CONSTANT",
    "CUTS",
    "INDEXING",
    "IN_PLACE",
    "KEEPS_VALUES",
    "MAKES",
    "MARK",
    "PACKED_SIZES",
    "READS_NO_VALUES",
    "TABLE",
    "TAKES_COUNTS",
    "TAKES_MIXED",
    "Call",
    "Mark",
    "Mixing",
    "Picks",
]
