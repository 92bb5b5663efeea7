"""private-transformers, ghost clipping. PT_SRC names its source tree."""

import sys
import types
import warnings

from torch.nn import functional as F

from peer_steps.methods.base import Method, Unsupported, use_source_tree
from peer_steps.methods.stubs import stub_packages


class ContainerMeta(type):
    """The one metaclass that private-transformers takes from ml_swissknife."""

    def all(cls):
        return sorted(v for k, v in vars(cls).items() if not k.startswith("_"))


def stub_ml_swissknife():
    utils = types.ModuleType("ml_swissknife.utils")
    utils.ContainerMeta = ContainerMeta
    utils.handle_unused_kwargs = lambda kwargs, *_: None
    package = types.ModuleType("ml_swissknife")
    package.utils = utils
    sys.modules.update({"ml_swissknife": package, "ml_swissknife.utils": utils})


use_source_tree("PT_SRC")
warnings.filterwarnings("ignore")
stub_packages("transformers")
stub_ml_swissknife()

from private_transformers import PrivacyEngine
from private_transformers.supported_layers_grad_samplers import _supported_layers_grad_samplers as SAMPLERS


class PrivateTransformers(Method):
    """Ghost clipping. Both backward passes run inside `update`."""

    def wrap(self):
        unsupported = {
            type(m).__name__
            for m in self.model.modules()
            if any(p.requires_grad for p in m.parameters(recurse=False)) and type(m) not in SAMPLERS
        }
        if unsupported:
            raise Unsupported(f"private-transformers has no sampler for {sorted(unsupported)}")
        self.opt = self.adam()
        PrivacyEngine(
            self.model,
            batch_size=self.batch,
            sample_size=100 * self.batch,
            epochs=1,
            noise_multiplier=self.sigma,
            max_grad_norm=self.clip,
            clipping_mode="ghost",
            record_snr=False,
            skip_checks=True,
        ).attach(self.opt)

    def forward(self, x, y):
        self.opt.zero_grad()
        self.losses = F.cross_entropy(self.model(x), y, reduction="none")

    def backward(self, _):
        pass

    def update(self):
        self.opt.step(loss=self.losses)

    def regions(self):
        engine = self.opt.privacy_engine
        return [
            (self.opt, "original_step", "adam"),
            (engine, "_double_backward", "two backwards"),
            (engine, "_create_noisy_clipped_gradient", "noise+scale"),
        ]
