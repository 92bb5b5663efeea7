"""Losses of each example are those of torch, one example at a time, and their mean is torch's mean."""

import warnings

import pytest
import torch
from torch.nn import functional as F

from adamas import UnsupportedError
from adamas.integrations.opacus import reductions

N = 5


def _draw():
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def uniform(*shape):
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    def labels(*shape, most=3):
        return torch.randint(0, most, shape, generator=generator)

    return normal, uniform, labels


normal, uniform, labels = _draw()
SIGNS = 2.0 * labels(N, 4, most=2) - 1
CALLS = {
    F.cross_entropy: [
        ((normal(N, 3), labels(N)), {"label_smoothing": 0.1}),
        ((normal(N, 3, 4), labels(N, 4)), {}),
        ((normal(N, 3), uniform(N, 3).softmax(1)), {"weight": torch.ones(3).double()}),
    ],
    F.nll_loss: [((normal(N, 3, 2, 2), labels(N, 2, 2)), {})],
    F.mse_loss: [((normal(N, 2, 3), normal(N, 2, 3)), {})],
    F.l1_loss: [((normal(N), normal(N)), {})],
    F.smooth_l1_loss: [((normal(N, 4), normal(N, 4)), {"beta": 0.5})],
    F.huber_loss: [((normal(N, 4), normal(N, 4)), {"delta": 0.5})],
    F.binary_cross_entropy: [((uniform(N, 4), uniform(N, 4)), {"weight": uniform(4)})],
    F.binary_cross_entropy_with_logits: [((normal(N, 4), uniform(N, 4)), {"pos_weight": uniform(4)})],
    F.kl_div: [((normal(N, 4).log_softmax(1), normal(N, 4).softmax(1)), {})],
    F.poisson_nll_loss: [((normal(N, 4), uniform(N, 4)), {})],
    F.gaussian_nll_loss: [((normal(N, 4), normal(N, 4), uniform(N, 4)), {})],
    F.soft_margin_loss: [((normal(N, 4), SIGNS), {})],
    F.hinge_embedding_loss: [((normal(N, 4), SIGNS), {})],
    F.multi_margin_loss: [((normal(N, 3), labels(N)), {"weight": uniform(3)})],
    F.multilabel_margin_loss: [((normal(N, 3), labels(N, 3)), {})],
    F.multilabel_soft_margin_loss: [((normal(N, 4), labels(N, 4, most=2).double()), {})],
    F.margin_ranking_loss: [((normal(N), normal(N), SIGNS[:, 0]), {"margin": 0.5})],
    F.cosine_embedding_loss: [((normal(N, 4), normal(N, 4), SIGNS[:, 0]), {})],
    F.triplet_margin_loss: [((normal(N, 4), normal(N, 4), normal(N, 4)), {})],
    F.triplet_margin_with_distance_loss: [((normal(N, 4), normal(N, 4), normal(N, 4)), {})],
}
CASES = [(function, *call) for function, calls in CALLS.items() for call in calls]


def test_every_function_of_the_table_is_tried():
    assert set(CALLS) == {*reductions._OVER_LABELS, *reductions._OVER_ELEMENTS}


@pytest.mark.parametrize(
    ("function", "args", "kwargs"), CASES, ids=lambda value: getattr(value, "__name__", "")
)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_losses_of_examples_are_those_of_torch_one_at_a_time(function, args, kwargs, reduction):
    if "weight" in kwargs and function is F.cross_entropy:
        reduction = "sum"  # with reduction="mean" class weights are refused
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of kl_div, about its own mean
        kwargs = kwargs | {"reduction": reduction}
        form = reductions.of(function, args, kwargs)
        each = form.each(args[0], *args, **kwargs)
        alone = torch.stack([function(*(x[i : i + 1] for x in args), **kwargs) for i in range(N)])
        together = function(*args, **kwargs)
    torch.testing.assert_close(each, alone)
    torch.testing.assert_close(each.mean() if reduction == "mean" else each.sum(), together)
    assert form.reduction == reduction
    assert each.std() > 0


def test_batchmean_is_the_mean_of_the_examples_sums():
    args = CALLS[F.kl_div][0][0]
    form = reductions.of(F.kl_div, args, {"reduction": "batchmean"})
    each = form.each(args[0], *args, reduction="batchmean")
    torch.testing.assert_close(each.mean(), F.kl_div(*args, reduction="batchmean"))
    assert form.reduction == "mean"


def test_ignored_labels_do_not_count_and_an_example_without_others_has_loss_0():
    logits, y = normal(3, 4, 6), labels(3, 6, most=4)
    y[0, 2:] = -100
    y[1] = -100
    form = reductions.of(F.cross_entropy, (logits, y), {})
    each = form.each(logits, logits, y)
    torch.testing.assert_close(each[0], F.cross_entropy(logits[0, :, :2].T, y[0, :2]))
    assert each[1] == 0
    torch.testing.assert_close(each[2], F.cross_entropy(logits[2].T, y[2]))
    flat = logits.transpose(1, 2).reshape(-1, 4)
    again = reductions.of(F.cross_entropy, (flat, y.view(-1)), {}).each(logits, flat, y.view(-1))
    torch.testing.assert_close(again, each)


def test_other_functions_and_losses_without_reduction_are_left_alone():
    assert reductions.of(torch.exp, (normal(3),), {}) is None
    assert reductions.of(F.mse_loss, (normal(3), normal(3)), {"reduction": "none"}) is None


@pytest.mark.parametrize("function", [F.cross_entropy, F.nll_loss])
def test_a_mean_with_class_weights_is_refused(function):
    given = (normal(4, 3), labels(4), uniform(3))
    with pytest.raises(UnsupportedError, match="total weight"):
        reductions.of(function, given, {})
    assert reductions.of(function, given, {"reduction": "sum"}).reduction == "sum"


def test_options_that_cannot_be_taken_apart_are_refused():
    given = (normal(4, 3), labels(4))
    for options, message in (
        ({"size_average": True}, "size_average"),
        ({"reduce": False}, "reduce"),
        ({"reduction": "batchmean"}, "reduction of torch"),
    ):
        with pytest.raises(ValueError, match=message):
            reductions.of(F.cross_entropy, given, options)
    with pytest.raises(UnsupportedError, match="ctc_loss"):
        reductions.of(F.ctc_loss, (normal(5, 4, 3), labels(4, 2), labels(4), labels(4)), {})
