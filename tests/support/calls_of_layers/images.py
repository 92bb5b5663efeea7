"""Cases of convolutions, pooling, resampling and shuffled pixels."""

import torch

from tests.support.separated_calls import Arg, const, family, leading, no, yes

for _k in (1, 2, 3):
    family(f"conv{_k}d", leading(lambda f, x, k=_k: f(x, const(4, 2, *[2] * k), const(4)), (2, *[4] * _k)))
    family(f"conv_transpose{_k}d", leading(lambda f, x, k=_k: f(x, const(2, 3, *[2] * k)), (2, *[3] * _k)))
    family(
        f"max_pool{_k}d avg_pool{_k}d max_pool{_k}d_with_indices",
        leading(lambda f, x: f(x, 2), (2, *[4] * _k)),
    )
    family(f"lp_pool{_k}d", leading(lambda f, x: f(x, 2.0, 2), (2, *[4] * _k)))
    family(
        f"adaptive_max_pool{_k}d adaptive_avg_pool{_k}d",
        leading(lambda f, x, k=_k: f(x, [2] * k), (2, *[4] * _k)),
    )
family("unfold", leading(lambda f, x: f(x, 2, 2, 1) if f is torch.Tensor.unfold else f(x, (2, 2)), (2, 3, 3)))
family("fold", leading(lambda f, x: f(x, (3, 3), (2, 2)), (8, 4)))
family("interpolate upsample upsample_nearest", leading(lambda f, x: f(x, 4), (2, 3, 3)))
family("upsample_bilinear", leading(lambda f, x: f(x, (4, 4)), (2, 3, 3)))
family("pixel_shuffle", leading(lambda f, x: f(x, 2), (4, 3, 3)))
family("pixel_unshuffle", leading(lambda f, x: f(x, 2), (2, 4, 4)))
family(
    "channel_shuffle",
    lambda n: [
        *leading(lambda f, x: f(x, 2), (4, 3, 3))(n),
        no(lambda f, x: f(torch.cat([x, x], 1), 2), Arg((2, 2, 2, 2), 1)),
    ],
)
family(
    "grid_sample",
    lambda n: [
        yes(lambda f, x, g: f(x, g * 2 - 1, align_corners=False), Arg((2, 4, 4)), Arg((3, 3, 2))),
        no(lambda f, x: f(x, const(n, 3, 3, 2) - 1, align_corners=False), Arg((2, 4, 4))),
    ],
)
