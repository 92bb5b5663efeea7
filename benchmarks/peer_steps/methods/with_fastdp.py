"""fastDP (awslabs/fast-differential-privacy), book-keeping. FASTDP_SRC names its source tree."""

import warnings

from peer_steps.methods.base import Method, Unsupported, use_source_tree
from peer_steps.methods.stubs import stub_packages

use_source_tree("FASTDP_SRC")
warnings.filterwarnings("ignore")
stub_packages("transformers")

from fastDP import PrivacyEngine


class FastDP(Method):
    """Mode MixOpt, with the library's defaults."""

    def origin_params(self):
        return None

    def wrap(self):
        self.opt = self.adam()
        PrivacyEngine(
            self.model,
            batch_size=self.batch,
            sample_size=100 * self.batch,
            epochs=1,
            noise_multiplier=self.sigma,
            max_grad_norm=self.clip,
            clipping_mode="MixOpt",
            clipping_fn="Abadi",
            clipping_style="all-layer",
            loss_reduction="mean",
            origin_params=self.origin_params(),
        ).attach(self.opt)
        layers = [layer for _, layer in self.opt.privacy_engine.named_layers]
        supported = sum(p.numel() for layer in layers for p in layer.parameters(recurse=False))
        total = sum(p.numel() for _, p in self.trainable)
        if supported < total:
            raise Unsupported(
                f"fastDP handles {supported} of {total} trainable parameters; "
                "it silently leaves the rest untrained"
            )

    def regions(self):
        return [
            (self.opt, "original_step", "adam"),
            (self.opt.privacy_engine, "_create_noisy_clipped_gradient", "finish"),
        ]


class FastDPOrigin(FastDP):
    """Starts the backward pass at the first trainable layer's bias, or at its weight if it has no bias."""

    def origin_params(self):
        names = [n for n, _ in self.trainable]
        first = names[0].rsplit(".", 1)[0]
        return [[n for n in names if n.rsplit(".", 1)[0] == first][-1]]
