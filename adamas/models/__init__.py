"""Models by name, for the command line: `MODELS[name](input_shape, classes)`."""

from collections.abc import Callable

from torch import nn

from adamas.models.bert import BertSizes
from adamas.models.cnn import cnn
from adamas.models.cnn5 import cnn5
from adamas.models.gcn import gcn
from adamas.models.graphsage import graphsage
from adamas.models.minilm import minilm, minilm_classifier
from adamas.models.mlp import linear, mlp
from adamas.models.node_mlp import node_mlp
from adamas.models.resnet import resnet8_gn, resnet18_gn
from adamas.models.scattering import Scattering, scattering
from adamas.models.staged import Staged
from adamas.models.tanh_cnn import tanh_cnn
from adamas.models.wide_resnet import wide_resnet

MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "linear": linear,
    "tanh-cnn": tanh_cnn,
    "cnn": cnn,
    "cnn5": cnn5,
    "wrn-16-4": wide_resnet,
    "resnet8-gn": resnet8_gn,
    "resnet18-gn": resnet18_gn,
    "scattering": scattering,
    "minilm": minilm_classifier,
    "gcn": gcn,
    "graphsage": graphsage,
    "node-mlp": node_mlp,
}
"""Models by name; each takes `(input_shape, classes)` and its own options by keyword."""

__all__ = [
    "MODELS",
    "BertSizes",
    "Scattering",
    "Staged",
    "cnn",
    "cnn5",
    "gcn",
    "graphsage",
    "linear",
    "minilm",
    "minilm_classifier",
    "mlp",
    "node_mlp",
    "resnet8_gn",
    "resnet18_gn",
    "scattering",
    "tanh_cnn",
    "wide_resnet",
]
