"""Cases of elementwise functions, losses, reductions, sorting, transforms and linear algebra."""

import torch

from tests.support.separated_calls import (
    METHODS,
    Arg,
    binary,
    const,
    every_layout,
    family,
    fixed,
    leading,
    no,
    reduction,
    unary,
    unreduced,
    yes,
)

family(
    "abs absolute acos angle asin asinh atan atanh arccos arcsin arcsinh arctan arctanh ceil celu conj "
    "cos cosh deg2rad digamma elu erf erfc erfinv exp exp2 expm1 expit fix floor frac gelu hardshrink "
    "hardsigmoid hardswish hardtanh i0 i0e i1 i1e isfinite isinf isnan isneginf isposinf isreal "
    "leaky_relu lgamma log log10 log1p log2 log_ndtr logical_not logit logsigmoid mish nan_to_num ndtr "
    "ndtri neg negative positive rad2deg reciprocal relu relu6 round rrelu rsqrt selu sgn sigmoid sign "
    "signbit silu sin sinc sinh softplus softshrink softsign sqrt square tan tanh tanhshrink trunc "
    "__abs__ __neg__ __pos__ clone contiguous cpu detach double float int long short half bfloat16 bool "
    "byte char resolve_conj resolve_neg alias requires_grad_ as_tensor zeros_like ones_like zero_ data",
    unary(),
)
family("acosh arccosh", unary(lambda f, x: f(x + 1)))
family("bitwise_not __invert__", unary(kind="int"))
family("threshold", unary(lambda f, x: f(x, 0.3, 0.0)))
family("real imag", unary(kind="complex"))
family("to type", unary(lambda f, x: f(x, torch.float32)))
family("type_as", unary(lambda f, x: f(x, const(2).float())))
family("full_like fill_", unary(lambda f, x: f(x, 2.0)))
family("cuda", fixed())
family("bernoulli rand_like randn_like empty_like", unary(values=False))
family("bernoulli_ uniform_ normal_ exponential_ random_", unary(values=False, gradients=False))
family("randint_like", unary(lambda f, x: f(x, 5), values=False))
family("multinomial", leading(lambda f, x: f(x, 2), (4,), values=False))
family("dropout alpha_dropout native_dropout", unary(lambda f, x: f(x, 0.5, False)))
family("dropout1d feature_dropout feature_alpha_dropout", leading(lambda f, x: f(x, 0.5, False), (2, 3)))
family("dropout2d", leading(lambda f, x: f(x, 0.5, False), (2, 3, 3)))
family("dropout3d", leading(lambda f, x: f(x, 0.5, False), (2, 3, 3, 2)))

family(
    "add atan2 arctan2 copysign div divide eq float_power fmax fmin fmod ge greater greater_equal gt "
    "hypot isclose le less less_equal logaddexp logaddexp2 logical_and logical_or logical_xor lt maximum "
    "minimum mul multiply ne nextafter not_equal pow remainder rsub sub subtract true_divide xlog1py xlogy "
    "clamp_max clamp_min clamp clip __add__ __div__ __mod__ __mul__ __pow__ __radd__ __rdiv__ "
    "__rmod__ __rmul__ __rpow__ __rsub__ __rtruediv__ __sub__ __truediv__ __iadd__ __isub__ "
    "__imul__ __itruediv__ __idiv__ __imod__ __ipow__ ldexp",
    binary(),
)
family("zeta", binary(lambda f, x, y: f(x + 2, y + 1), gradients=False))
family("floor_divide heaviside __floordiv__ __rfloordiv__ __ifloordiv__", binary(gradients=False))
family(
    "bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift __and__ __or__ __xor__ "
    "__rand__ __ror__ __rxor__ __lshift__ __rshift__ __iand__ __ior__ __ixor__",
    binary(kind="int"),
)
family("__eq__ __ne__ __ge__ __gt__ __le__ __lt__", binary())
family("addcmul addcdiv", binary(lambda f, x, y: f(x, y, y + 1)))
family("lerp", binary(lambda f, x, y: f(x, x * 2, y)))
family("masked_fill", binary(lambda f, x, y: f(x, y, 0.5), other="bool"))
family("where", binary(lambda f, x, y: f(x, y, x * 2) if f in METHODS else f(y, x, x * 2), other="bool"))
family("polygamma", unary(lambda f, x: f(x, 1) if f in METHODS or f.__name__ == "polygamma_" else f(1, x)))
family("copy_", binary())
family(
    "mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div "
    "poisson_nll_loss",
    lambda n: [
        *(yes(unreduced, arg, arg) for arg in every_layout(n)),
        no(unreduced, Arg((n,), 0), Arg((n,), 1)),
        no(lambda f, x: unreduced(f, x, const(n, 3)), Arg((3,), 0)),
        no(lambda f, x, y: f(x, y), Arg((3,)), Arg((3,))),
    ],
)

family(
    "soft_margin_loss",
    lambda n: [
        yes(unreduced, Arg((n,)), Arg((n,)), gradients=False),
        no(unreduced, Arg((n,), 0), Arg((n,), 1), gradients=False),
        no(lambda f, x: unreduced(f, x, const(n, 3)), Arg((3,), 0)),
    ],
)


family(
    "sum mean nanmean nansum prod amax amin argmax argmin all any median nanmedian std var std_mean var_mean",
    reduction(lambda f, x, dim, keep=False: f(x, dim=dim, keepdim=keep)),
)
family("logsumexp mode", reduction(lambda f, x, dim, keep=False: f(x, dim, keepdim=keep), whole=False))
family("max min", lambda n: [*reduction(lambda f, x, d, k=False: f(x, d, k))(n), *binary()(n)])
family("count_nonzero", reduction(lambda f, x, dim: f(x, dim), keepdim=False))
family("aminmax", reduction(lambda f, x, dim, keep=False: f(x, dim=dim, keepdim=keep)))
family(
    "cumsum cumprod cummax cummin logcumsumexp softmax log_softmax softmin",
    reduction(lambda f, x, dim: f(x, dim), keepdim=False, whole=False),
)
family("_log_softmax", reduction(lambda f, x, dim: f(x, dim, False), keepdim=False, whole=False))
family("norm vector_norm", reduction(lambda f, x, dim, keep=False: f(x, 2, dim, keep)))
family("normalize", reduction(lambda f, x, dim: f(x, 2.0, dim), keepdim=False, whole=False))
family("topk kthvalue", reduction(lambda f, x, dim: f(x, 1, dim), keepdim=False, whole=False))
family(
    "sort argsort",
    lambda n: [
        *reduction(lambda f, x, dim: f(x, dim=dim), keepdim=False, whole=False)(n),
        yes(lambda f, x: f(x), Arg(()), gradients=True),
        yes(lambda f, x: x[torch.argsort(x)][torch.argsort(torch.argsort(x))], Arg(())),
        no(lambda f, x: x * torch.argsort(torch.argsort(x)), Arg(())),
        no(lambda f, x: x * torch.sort(x)[0], Arg(())),
    ],
)
family("msort", lambda n: [no(lambda f, x: f(x), Arg((3,))), yes(lambda f, x: f(x), Arg((3,), 1))])
family("flip", reduction(lambda f, x, dim: f(x, (dim,)), keepdim=False, whole=False))
family("fliplr", lambda n: [yes(lambda f, x: f(x), Arg((n,))), no(lambda f, x: f(x), Arg((n,), 1))])
family("flipud", lambda n: [no(lambda f, x: f(x), Arg((n,))), yes(lambda f, x: f(x), Arg((n,), 1))])
family("roll", reduction(lambda f, x, dim: f(x, 1, dim), keepdim=False, whole=False))
family("quantile nanquantile", reduction(lambda f, x, dim, keep=False: f(x, 0.4, dim, keep), whole=False))
family("glu", leading(lambda f, x: f(x, -1), (3, 4)))
family("diff", reduction(lambda f, x, dim: f(x, 1, dim), keepdim=False, whole=False))
family(
    "fft ifft rfft irfft hfft ihfft",
    reduction(lambda f, x, dim: f(x, 4, dim), keepdim=False, whole=False),
)
family("fft2 ifft2 rfft2 irfft2", leading(lambda f, x: f(x), (3, 4)))
family("fftn ifftn rfftn irfftn", leading(lambda f, x: f(x, None, (-2, -1)), (3, 4)))
family("tril triu", leading(lambda f, x: f(x), (3, 3)))
family(
    "inv inverse det logdet slogdet matrix_exp pinv cholesky eigh",
    leading(lambda f, x: f(x), (3, 3), kind="matrix"),
)
family("qr svd", leading(lambda f, x: f(x), (3, 3), kind="matrix", gradients=False))
family("matrix_power", leading(lambda f, x: f(x, 2), (3, 3)))
family("layer_norm rms_norm", leading(lambda f, x: f(x, (3,)), (2, 3)))
family("pad", leading(lambda f, x: f(x, (1, 2)), (2, 3)))
