"""The rows: which functions have which rule."""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch.nn import functional as F

from adamas.engines.bookkeeping.separation import (
    axes,
    elementwise,
    factories,
    gathering,
    gradients,
    indexing,
    layers,
    products,
    views,
)
from adamas.engines.bookkeeping.separation.call import Call, Found

Rule: TypeAlias = Callable[[Call], Found]

_UNARY = """
abs absolute acos acosh angle asin asinh atan atanh arccos arccosh arcsin arcsinh arctan arctanh bernoulli
bitwise_not ceil celu conj cos cosh deg2rad digamma elu erf erfc erfinv exp exp2 expm1 expit fix floor frac
gelu hardshrink hardsigmoid hardswish hardtanh i0 i0e i1 i1e isfinite isinf isnan isneginf isposinf isreal
leaky_relu lgamma log log10 log1p log2 log_ndtr logical_not logit logsigmoid mish nan_to_num ndtr ndtri neg
negative positive rad2deg reciprocal relu relu6 round rrelu rsqrt selu sgn sigmoid sign signbit silu sin
sinc sinh softplus softshrink softsign sqrt square tan tanh tanhshrink threshold trunc __abs__ __invert__
__neg__ __pos__
"""

_BINARY = """
add addcdiv addcmul atan2 arctan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor
clamp clamp_max clamp_min clip copysign div divide eq float_power floor_divide fmax fmin fmod ge greater
greater_equal gt heaviside hypot isclose le ldexp lerp less less_equal logaddexp logaddexp2 logical_and
logical_or logical_xor lt masked_fill maximum minimum mul multiply ne nextafter not_equal polygamma pow
remainder rsub sub subtract true_divide xlog1py xlogy zeta __add__ __and__ __div__ __eq__ __floordiv__
__ge__ __gt__ __le__ __lshift__ __lt__ __mod__ __mul__ __ne__ __or__ __pow__ __radd__ __rand__ __rdiv__
__rfloordiv__ __rmod__ __rmul__ __ror__ __rpow__ __rshift__ __rsub__ __rtruediv__ __rxor__ __sub__
__truediv__ __xor__
"""

_CASTS = """
alias bfloat16 bool byte char clone contiguous cpu cuda detach double float half int long requires_grad_
short to type type_as resolve_conj resolve_neg
"""

TABLE: dict[Any, Rule] = {}
"""The rule of each function, by the function itself."""

KEEPS_VALUES: set[Any] = set()
"""Functions that move values and do not change them, so that an index tensor still picks the same."""

INDEXING: set[Any] = set()
"""Functions whose rules know what positions of examples mean among their arguments."""

MAKES: set[Any] = set()
"""Functions that make a new constant."""

_HOMES = (
    torch.Tensor,
    torch,
    F,
    torch._C._nn,
    torch.special,
    torch.linalg,
    torch.fft,
    torch._VF,
)


def _rows(names: str, rule: Rule, *, values: bool = False, makes: bool = False) -> None:
    for name in names.split():
        for home in _HOMES:
            function = getattr(home, name, None)
            if not callable(function):
                continue
            TABLE[function] = rule
            if values:
                KEEPS_VALUES.add(function)
            if makes:
                MAKES.add(function)


_rows(_UNARY, elementwise.elementwise)
_rows(_BINARY, elementwise.elementwise)
_rows("where", indexing.chosen)
_rows(_CASTS, elementwise.cast, values=True)
_rows("as_tensor", elementwise.cast, values=True)
_rows("clone", elementwise.cast, values=True, makes=True)
_rows("zeros_like ones_like full_like empty_like", factories.made_like, makes=True)
_rows("rand_like randn_like randint_like", elementwise.cast, makes=True)
_rows(
    "dropout dropout1d dropout2d dropout3d alpha_dropout feature_dropout feature_alpha_dropout "
    "native_dropout",
    elementwise.dropped,
)
_rows(
    "mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div "
    "poisson_nll_loss soft_margin_loss",
    elementwise.pointwise_loss,
)
_rows("sum", axes.total)
_rows("max min", axes.largest)
_rows(
    "mean nanmean nansum prod amax amin argmax argmin all any logsumexp median nanmedian mode count_nonzero "
    "std var std_mean var_mean cumsum cumprod cummax cummin logcumsumexp nanmedian",
    axes.along_axis(1),
)
_rows("aminmax", lambda call: axes.along(call, call.first, call.kwargs.get("dim")))
_rows("softmax log_softmax softmin _log_softmax", axes.softmax)
_rows("norm vector_norm normalize", axes.along_axis(2))
TABLE[F.normalize] = axes.along_axis(2, default=1)
_rows("topk kthvalue", axes.along_axis(2, default=-1))
_rows("sort argsort", gathering.ordered)
_rows("msort", lambda call: axes.along(call, call.first, 0))
_rows("flip", axes.flipped)
_rows("fliplr", lambda call: axes.along(call, call.first, 1))
_rows("flipud", lambda call: axes.along(call, call.first, 0))
_rows("roll", axes.along_axis(2))
_rows("quantile nanquantile", axes.quantile)
_rows("glu", axes.gated)
_rows("diff", views.differences)
_rows("fft ifft rfft irfft hfft ihfft", axes.along_axis(2, default=-1))
_rows("fft2 ifft2 rfft2 irfft2", axes.along_axis(2, default=(-2, -1)))
_rows("fftn ifftn rfftn irfftn", axes.along_axis(2))
_rows("tril triu", axes.last_axes(2))
_rows("inv inverse det logdet slogdet matrix_exp pinv cholesky qr svd eigh matrix_power", axes.last_axes(2))
_rows("layer_norm rms_norm", axes.last_axes(axes.normalized))
_rows("pad", axes.padded)
_rows("matmul mm bmm mv __matmul__", products.matmul)
_rows("__rmatmul__", products.reversed_matmul)
_rows("addmm addmv baddbmm", products.added_product)
_rows("linear", products.linear)
_rows("bilinear", products.bilinear)
_rows("einsum", products.einsum)
_rows("scaled_dot_product_attention", products.attention)
_rows("cdist", products.distances)
_rows("conv1d conv_transpose1d", layers.batch_first(1))
_rows("conv2d conv_transpose2d", layers.batch_first(2))
_rows("conv3d conv_transpose3d", layers.batch_first(3))
_rows("unfold", layers.batch_first(2))
_rows("fold", layers.batch_first(1))
TABLE[torch.Tensor.unfold] = views.unfolded
_rows("interpolate upsample upsample_nearest upsample_bilinear local_response_norm", layers.batch_first())
_rows("pixel_shuffle pixel_unshuffle", axes.last_axes(3))
_rows("channel_shuffle", layers.batch_first())
for _axes in (1, 2, 3):
    _rows(
        f"max_pool{_axes}d max_pool{_axes}d_with_indices avg_pool{_axes}d lp_pool{_axes}d "
        f"adaptive_max_pool{_axes}d adaptive_avg_pool{_axes}d",
        layers.pool(_axes),
    )
_rows("group_norm", layers.group_norm)
_rows("instance_norm", layers.instance_norm)
TABLE[torch.instance_norm] = layers.bare_instance_norm
_rows("batch_norm", layers.batch_norm)
_rows("grid_sample", layers.grid_sample)
_rows("multinomial", axes.last_axes(1))
_rows("embedding", layers.embedding)
TABLE[torch.embedding] = layers.bare_embedding
_rows("embedding_bag", layers.embedding_bag)
_rows("one_hot", layers.one_hot)
_rows("cross_entropy nll_loss", layers.cross_entropy)
_rows("ctc_loss", layers.ctc_loss)
_rows("cosine_similarity", layers.similarity(2))
_rows("pairwise_distance", layers.similarity(5))
_rows("prelu", layers.batch_first())
_rows("lstm gru rnn_tanh rnn_relu", layers.recurrent)
_rows("lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell", layers.recurrent_cell)
_rows("view reshape flatten unflatten view_as reshape_as ravel", views.reshaped, values=True)
_rows("permute", views.moved(views.permuted), values=True)
_rows("transpose swapaxes swapdims t adjoint", views.moved(views.transposed), values=True)
_rows("movedim moveaxis", views.moved(views.moved_axes), values=True)
_rows("unsqueeze unsqueeze_", views.unsqueeze, values=True)
_rows("squeeze", views.squeeze, values=True)
_rows("expand expand_as broadcast_to", views.expanded, values=True)
_rows("repeat", views.repeated)
_rows("tile", views.tiled)
_rows("repeat_interleave", views.repeat_interleave, values=True)
_rows("chunk split split_with_sizes tensor_split unbind select narrow", views.pieces)
_rows("stack", views.stacked)
_rows("cat concat concatenate", views.concatenated)
_rows("broadcast_tensors", views.broadcast_tensors)
_rows("__getitem__", indexing.getitem, values=True)
_rows("__setitem__", indexing.setitem)
_rows("nonzero argwhere", indexing.nonzero)
_rows("masked_select", indexing.masked_select)
_rows("gather take_along_dim", gathering.gathered)
_rows("index_fill", gathering.index_filled)
_rows("index_select", gathering.index_select)
_rows("index_add index_copy", gathering.index_add)
_rows("scatter scatter_add scatter_reduce", gathering.scatter)
_rows("zeros ones empty full rand randn", factories.made, makes=True)
_rows("new_zeros new_ones new_empty new_full", factories.made_new, makes=True)
_rows("arange", factories.numbered, makes=True)
TABLE[torch.autograd.grad] = gradients.inner_gradient

# Properties.
for _name in ("T", "mT", "H", "mH"):
    TABLE[getattr(torch.Tensor, _name).__get__] = views.moved(views.transposed)
for _name in ("data", "real", "imag"):
    TABLE[getattr(torch.Tensor, _name).__get__] = elementwise.cast
KEEPS_VALUES.add(torch.Tensor.data.__get__)  # type: ignore[attr-defined]

IN_PLACE: dict[Any, Rule] = {}
"""The rules of functions that work in place: those of the functions without the underscore."""

_RESHAPING = {"squeeze_", "unsqueeze_", "transpose_", "t_", "swapaxes_", "swapdims_", "requires_grad_"}
for _function, _rule in list(TABLE.items()):
    _twin = f"{getattr(_function, '__name__', '')}_"
    if _twin not in _RESHAPING:
        for _home in _HOMES:
            if callable(getattr(_home, _twin, None)):
                IN_PLACE[getattr(_home, _twin)] = _rule
for _name in [
    "__iadd__",
    "__isub__",
    "__imul__",
    "__itruediv__",
    "__idiv__",
    "__ifloordiv__",
    "__imod__",
    "__ipow__",
    "__iand__",
    "__ior__",
    "__ixor__",
    "fill_",
    "zero_",
    "uniform_",
    "normal_",
    "exponential_",
    "bernoulli_",
    "random_",
]:
    if hasattr(torch.Tensor, _name):
        IN_PLACE[getattr(torch.Tensor, _name)] = elementwise.elementwise
IN_PLACE[torch.Tensor.copy_] = elementwise.copied
IN_PLACE[torch.Tensor.__setitem__] = TABLE.pop(torch.Tensor.__setitem__)

for _function, _rule in (*TABLE.items(), *IN_PLACE.items()):
    if _rule in (
        indexing.getitem,
        indexing.setitem,
        gathering.index_select,
        gathering.index_add,
        gathering.scatter,
    ):
        INDEXING.add(_function)

TAKES_COUNTS: set[Any] = set()
"""Functions whose rules know what a number of examples means among their arguments."""

for _function, _rule in (*TABLE.items(), *IN_PLACE.items()):
    if _rule in (
        *(
            views.reshaped,
            views.expanded,
            views.repeated,
            views.tiled,
            views.repeat_interleave,
            views.pieces,
            factories.made,
            factories.made_new,
            factories.numbered,
        ),
        *(indexing.getitem, indexing.setitem),
    ):
        TAKES_COUNTS.add(_function)

CUTS: set[Any] = {function for function, rule in TABLE.items() if rule is views.pieces}
"""Functions that cut a tensor into pieces, whose number is a plain one."""

TAKES_MIXED: set[Any] = {function for function, rule in TABLE.items() if rule is factories.made}
TAKES_MIXED.add(torch.autograd.grad)
"""Functions whose rules know what a mixed value means among their arguments."""

READS_NO_VALUES: set[Any] = {function for function, rule in TABLE.items() if rule is factories.made_new}
READS_NO_VALUES |= {torch.Tensor.to, torch.Tensor.type_as, torch.Tensor.view_as, torch.Tensor.reshape_as}
"""Functions that take data for its shape, type or device only."""
