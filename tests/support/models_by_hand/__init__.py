"""Small models as people write them by hand.

`CASES` maps a name to a function that builds a model and its input. There is one case for each way to use a
weight, from plain layers to tied, derived, checkpointed and frozen ones. `made` builds a case in float64.
"""

from tests.support.models_by_hand import (
    attention_layers,
    convolutions,
    derived,
    elementwise,
    embeddings,
    frozen_parts,
    linear,
    normalizations,
    products,
    recurrent_layers,
    unusual,
)
from tests.support.models_by_hand.attention_layers import attention
from tests.support.models_by_hand.frozen_parts import frozen
from tests.support.models_by_hand.normalizations import normed
from tests.support.models_by_hand.parts import B, Build, Pool, made, mlp, param, rows, tokens
from tests.support.models_by_hand.recurrent_layers import recurrent
from tests.support.models_by_hand.unusual import checkpointed
from tests.support.through import Through

__all__ = [
    "CASES",
    "B",
    "Build",
    "Pool",
    "Through",
    "attention",
    "checkpointed",
    "frozen",
    "made",
    "mlp",
    "normed",
    "param",
    "recurrent",
    "rows",
    "tokens",
]

CASES: dict[str, Build] = {}
for family in (
    linear,
    convolutions,
    embeddings,
    normalizations,
    elementwise,
    derived,
    products,
    attention_layers,
    recurrent_layers,
    frozen_parts,
    unusual,
):
    assert not CASES.keys() & family.CASES.keys(), "two cases have the same name"
    CASES |= family.CASES
