"""Models in plain torch, without Hugging Face."""

from tests.support.architectures.plain.attention import register_attention
from tests.support.architectures.plain.experts import register_experts
from tests.support.architectures.plain.feedforward import register_feedforward
from tests.support.architectures.plain.graphs import register_graphs
from tests.support.architectures.plain.images import register_images
from tests.support.architectures.plain.recurrent import register_recurrent
from tests.support.architectures.plain.videos import register_videos


def register_plain() -> None:
    """Adds models in plain torch."""
    register_videos()
    register_recurrent()
    register_experts()
    register_feedforward()
    register_attention()
    register_images()
    register_graphs()
