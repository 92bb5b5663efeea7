"""Architectures that people train, tiny and with random weights, to test the fast engine on.

`ARCHITECTURES[name].build(n)` makes a model, a loss with one value per example, and a batch of `n` examples
whose tensors have the example axis first. Models of Hugging Face come from `transformers`, adapters from
`peft`. Only the factories import these packages, and nothing is downloaded. `MIXED` has models and losses
that mix the examples of a batch. No engine may accept them.

    python -m tests.support.architectures [part of a name ...]

prints for each architecture whether the fast engine accepts it, its error, and the seconds for building it,
for plain autograd one example at a time, and for the engine.
"""

from tests.support.architectures.adapters import register_adapters
from tests.support.architectures.decoders import register_decoders
from tests.support.architectures.encoders import register_encoders
from tests.support.architectures.mixed import register_mixed
from tests.support.architectures.plain import register_plain
from tests.support.architectures.registry import ARCHITECTURES, MIXED, N, T
from tests.support.architectures.signals import register_signals
from tests.support.architectures.translators import register_translators
from tests.support.architectures.verdict import judged
from tests.support.architectures.vision import register_vision

__all__ = ["ARCHITECTURES", "MIXED", "N", "T", "judged"]

register_plain()
register_encoders()
register_decoders()
register_translators()
register_vision()
register_signals()
register_adapters()
register_mixed()
