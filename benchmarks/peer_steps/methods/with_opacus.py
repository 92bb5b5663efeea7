"""Opacus: per-example gradients in three modes, and ghost clipping."""

import warnings

warnings.filterwarnings("ignore")  # Opacus warns as it is imported, and in each step

from opacus.grad_sample import (
    GradSampleModule,
    GradSampleModuleExpandedWeights,
    GradSampleModuleFastGradientClipping,
)
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

from peer_steps.methods.base import Method


class Opacus(Method):
    """Per-example gradients from hooks, which is the library's default mode."""

    def module(self):
        return GradSampleModule(self.model, loss_reduction="mean")

    def private(self, optimizer_class):
        """Returns Adam in an optimizer of Opacus."""
        return optimizer_class(
            self.adam(),
            noise_multiplier=self.sigma,
            max_grad_norm=self.clip,
            expected_batch_size=self.batch,
        )

    def wrap(self):
        self.model = self.module()
        self.opt = self.private(DPOptimizer)

    def regions(self):
        return [
            (self.opt, "clip_and_accumulate", "clip"),
            (self.opt, "add_noise", "noise"),
            (self.opt, "scale_grad", "scale"),
            (self.opt.original_optimizer, "step", "adam"),
        ]


class OpacusFunctorch(Opacus):
    """Per-example gradients from `torch.func`."""

    def module(self):
        return GradSampleModule(self.model, loss_reduction="mean", force_functorch=True)


class OpacusExpandedWeights(Opacus):
    """Per-example gradients from torch's expanded weights."""

    def module(self):
        return GradSampleModuleExpandedWeights(self.model, loss_reduction="mean")


class OpacusGhost(Opacus):
    """Ghost clipping: norms in a first backward pass, the clipped sum in a second."""

    def wrap(self):
        self.model = GradSampleModuleFastGradientClipping(
            self.model, max_grad_norm=self.clip, use_ghost_clipping=True
        )
        self.opt = self.private(DPOptimizerFastGradientClipping)
        self.loss = DPLossFastGradientClipping(self.model, self.opt, self.loss)

    def regions(self):
        return [
            (self.model, "get_clipping_coef", "coef"),
            (self.opt, "accumulate", "accumulate"),
            (self.opt, "add_noise", "noise"),
            (self.opt, "scale_grad", "scale"),
            (self.opt.original_optimizer, "step", "adam"),
        ]
