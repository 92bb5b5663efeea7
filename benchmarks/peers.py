#!/usr/bin/env python3
"""Side-by-side CPU benchmark of differentially private training steps in PyTorch.

    python peers.py --workloads W1,W4 --methods plain,opacus_hooks --reps 5 --json out.json
    python peers.py --check                 # noise 0: private gradients against the vmap baseline
    python peers.py --micro                 # Adam variants, Gaussian draws, 1 and 2 threads
    python peers.py --profile --workloads W1,W4 --methods opacus_hooks   # where the time goes
    python peers.py --list

Every (workload, method) lives in its own fresh subprocess, started once; the
parent then goes round-robin over the methods of a workload, so that drift of
the machine hits all of them alike.  The parent never imports torch, because a
child inherits its parent's ru_maxrss.

Adding a library: subclass ``Method``, decorate it with ``@method``, fill in
``prepare`` (imports) and ``setup`` (wrap model and optimizer); override
``forward``/``backward``/``update`` where they differ from plain PyTorch.
Adding a workload: a function with ``@workload(name, batch)`` returning
``(model, inputs, targets)``.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

WORKLOADS, METHODS = {}, {}
SEQUENCE = 128  # tokens of the text workloads; --seq overrides it

# --------------------------------------------------------------------------
# Workloads
# --------------------------------------------------------------------------


def workload(name, batch, note=""):
    def register(fn):
        WORKLOADS[name] = {"build": fn, "batch": batch, "note": note}
        return fn

    return register


def build_workload(name, seed=0):
    import torch

    torch.manual_seed(seed)
    spec = WORKLOADS[name]
    model, x, y = spec["build"](spec["batch"])
    return model.train(), x, y


@workload("W1", 256, "MLP 784-1000-10, ReLU")
def _w1(batch):
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(784, 1000), nn.ReLU(), nn.Linear(1000, 10))
    return model, torch.randn(batch, 784), torch.randint(0, 10, (batch,))


@workload("W2", 256, "5-layer CNN conv32-conv64-conv64-fc128-fc10, 3x32x32")
def _w2(batch):
    import torch
    from torch import nn

    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4096, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )
    return model, torch.randn(batch, 3, 32, 32), torch.randint(0, 10, (batch,))


def wide_resnet(weight_std):
    import torch
    from torch import nn
    from torch.nn import functional as F

    class WSConv2d(nn.Conv2d):
        """Convolution whose kernel is standardised per output channel."""

        def forward(self, x):
            w = self.weight
            fan = w[0].numel()
            mean = w.mean(dim=(1, 2, 3), keepdim=True)
            var = w.var(dim=(1, 2, 3), keepdim=True, unbiased=False)
            w = (w - mean) * torch.rsqrt((var * fan).clamp(min=1e-4))
            return F.conv2d(x, w, self.bias, self.stride, self.padding)

    conv = WSConv2d if weight_std else nn.Conv2d

    class Block(nn.Module):
        def __init__(self, cin, cout, stride):
            super().__init__()
            self.n1 = nn.GroupNorm(16, cin)
            self.c1 = conv(cin, cout, 3, stride=stride, padding=1, bias=False)
            self.n2 = nn.GroupNorm(16, cout)
            self.c2 = conv(cout, cout, 3, padding=1, bias=False)
            self.cut = conv(cin, cout, 1, stride=stride, bias=False) if cin != cout or stride != 1 else None

        def forward(self, x):
            h = F.relu(self.n1(x))
            skip = x if self.cut is None else self.cut(h)
            return skip + self.c2(F.relu(self.n2(self.c1(h))))

    class WRN(nn.Module):
        def __init__(self, depth=16, width=4, classes=10):
            super().__init__()
            self.stem = conv(3, 16, 3, padding=1, bias=False)
            blocks, cin = [], 16
            for stage, c in enumerate((16 * width, 32 * width, 64 * width)):
                for i in range((depth - 4) // 6):
                    blocks.append(Block(cin, c, 2 if stage and not i else 1))
                    cin = c
            self.blocks = nn.Sequential(*blocks)
            self.norm = nn.GroupNorm(16, cin)
            self.fc = nn.Linear(cin, classes)

        def forward(self, x):
            h = F.relu(self.norm(self.blocks(self.stem(x))))
            return self.fc(h.mean(dim=(2, 3)))

    return WRN()


@workload("W3", 32, "Wide-ResNet-16-4, GroupNorm(16), plain convolutions")
def _w3(batch):
    import torch

    return wide_resnet(False), torch.randn(batch, 3, 32, 32), torch.randint(0, 10, (batch,))


@workload("W3ws", 32, "as W3 with weight-standardised convolutions (nn.Conv2d subclass)")
def _w3ws(batch):
    import torch

    return wide_resnet(True), torch.randn(batch, 3, 32, 32), torch.randint(0, 10, (batch,))


def text_classifier(layers=6, d=384, ff=1536, heads=12, vocab=30522, classes=2):
    seq = SEQUENCE
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln1 = nn.LayerNorm(d)
            self.qkv = nn.Linear(d, 3 * d)
            self.out = nn.Linear(d, d)
            self.ln2 = nn.LayerNorm(d)
            self.up = nn.Linear(d, ff)
            self.down = nn.Linear(ff, d)

        def forward(self, x):
            b, t, _ = x.shape
            q, k, v = (
                z.view(b, t, heads, d // heads).transpose(1, 2)
                for z in self.qkv(self.ln1(x)).chunk(3, dim=-1)
            )
            a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
            x = x + self.out(a)
            return x + self.down(F.gelu(self.up(self.ln2(x))))

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.tok = nn.Embedding(vocab, d)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.norm = nn.LayerNorm(d)
            self.head = nn.Linear(d, classes)
            # Fixed sinusoids, a plain attribute: no parameter, no buffer.
            pos, i = torch.arange(seq)[:, None], torch.arange(0, d, 2)[None]
            ang = pos / 10000 ** (i / d)
            self.pos = torch.stack([ang.sin(), ang.cos()], -1).flatten(1)

        def forward(self, ids):
            x = self.tok(ids) + self.pos
            for blk in self.blocks:
                x = blk(x)
            return self.head(self.norm(x).mean(dim=1))

    return Encoder(), seq, vocab, classes


@workload("W4", 16, "Transformer encoder 6x384, ff 1536, 12 heads, seq 128, vocab 30522, all trainable")
def _w4(batch):
    import torch

    model, seq, vocab, classes = text_classifier()
    return model, torch.randint(0, vocab, (batch, seq)), torch.randint(0, classes, (batch,))


@workload("W5", 16, "as W4, only last block + final norm + head trainable")
def _w5(batch):
    import torch

    model, seq, vocab, classes = text_classifier()
    for p in model.parameters():
        p.requires_grad_(False)
    for part in (model.blocks[-1], model.norm, model.head):
        for p in part.parameters():
            p.requires_grad_(True)
    return model, torch.randint(0, vocab, (batch, seq)), torch.randint(0, classes, (batch,))


# --------------------------------------------------------------------------
# Methods
# --------------------------------------------------------------------------


def method(cls):
    METHODS[cls.name] = cls
    return cls


class Unsupported(Exception):
    pass


class Method:
    """One way to make a training step.  The base class is plain PyTorch."""

    name = ""
    note = ""
    private = True

    def __init__(self, batch, clip, sigma, lr=1e-3):
        self.batch, self.clip, self.sigma, self.lr = batch, clip, sigma, lr

    @classmethod
    def prepare(cls):
        """Imports, done before the memory baseline is taken."""
        import torch.optim  # noqa: F401

    def adam(self, **kw):
        import torch

        return torch.optim.Adam([p for p in self.model.parameters() if p.requires_grad], lr=self.lr, **kw)

    def setup(self, model):
        from torch import nn

        self.model, self.loss = model, nn.CrossEntropyLoss()
        self.trainable = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        self.wrap()

    def wrap(self):
        self.opt = self.adam()

    def forward(self, x, y):
        self.opt.zero_grad()
        return self.loss(self.model(x), y)

    def backward(self, loss):
        loss.backward()

    def update(self):
        self.opt.step()

    def step(self, x, y):
        self.backward(self.forward(x, y))
        self.update()

    def grads(self):
        """name -> gradient the optimizer saw (mean over the batch)."""
        return {n: p.grad for n, p in self.trainable}

    def regions(self):
        """(object, attribute, label) triples the profiler times separately."""
        return [(self.opt, "step", "adam")]


@method
class Plain(Method):
    name, note, private = "plain", "non-private, torch.optim.Adam default", False


@method
class PlainFused(Method):
    name, note, private = "plain_fused", "non-private, Adam(fused=True)", False

    def wrap(self):
        self.opt = self.adam(fused=True)


@method
class Floor(Method):
    name, private = "floor", False
    note = "non-private gradient + one Gaussian draw per parameter + fused Adam (not DP: no clipping)"

    def wrap(self):
        self.opt = self.adam(fused=True)

    def noise(self):
        import torch

        std = self.sigma * self.clip / self.batch
        for _, p in self.trainable:
            p.grad.add_(torch.randn_like(p), alpha=std)

    def update(self):
        self.noise()
        self.opt.step()

    def regions(self):
        return [(self, "noise", "noise"), (self.opt, "step", "adam")]


class AdamasStep(Method):
    """The whole private step of adamas: engine, clipping, noise, the rule `adam`."""

    @classmethod
    def prepare(cls):
        import adamas  # noqa: F401

    def wrap(self):
        from torch.nn import functional as F

        from adamas import rules
        from adamas.engines import ENGINES
        from adamas.noise import GaussianNoise

        self.make, self.noise = ENGINES["bookkeeping"], GaussianNoise(0)
        self.opt = rules.Adam([p for _, p in self.trainable], lr=self.lr)
        self.losses = lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], reduction="none")
        self.geometry = self.opt.geometry

    def forward(self, x, y):
        self.release = None
        self.opt.zero_grad()
        return self.make(self.model, self.losses, (x, y))

    def backward(self, engine):
        from adamas.privatize import privatize

        self.release = privatize(
            [(engine, 0)],
            self.geometry().scaled(self.clip),
            noise_multiplier=self.sigma,
            expected_batch_size=self.batch,
            noise=self.noise,
            charge=lambda _: (),
        )

    def update(self):
        self.release.write_to(self.opt)
        self.opt.step()

    def regions(self):
        return [(self.noise, "normal_", "noise"), (self.opt, "step", "adam")]


@method
class Adamas(AdamasStep):
    name, note = "adamas", "engine bookkeeping, flat clipping"


@method
class AdamasCoordinates(AdamasStep):
    name, note = "adamas_coord", "engine bookkeeping, a random center and scale per coordinate"

    def wrap(self):
        import torch

        from adamas import Geometry

        super().wrap()
        random = torch.Generator().manual_seed(0)
        self.fixed = Geometry(
            {p: 1e-3 * torch.randn(p.shape, generator=random) for _, p in self.trainable},
            {p: 0.5 + torch.rand(p.shape, generator=random) for _, p in self.trainable},
        )
        self.geometry = lambda: self.fixed


@method
class Vmap(Method):
    name, note = "vmap", "hand-written torch.func vmap(grad), flat clipping"

    def wrap(self):
        from torch.func import functional_call, grad, vmap
        from torch.nn import functional as F
        from torch.nn.attention import SDPBackend, sdpa_kernel

        self.opt = self.adam()
        model = self.model
        self.names = [n for n, _ in self.trainable]
        frozen = {n: p.detach() for n, p in model.named_parameters() if not p.requires_grad}

        def loss_one(params, x, y):
            out = functional_call(model, {**frozen, **params}, (x[None],))
            return F.cross_entropy(out, y[None])

        per_sample = vmap(grad(loss_one), in_dims=(None, 0, 0))

        def run(x, y):
            # the fused CPU attention kernel has no batching rule
            with sdpa_kernel(SDPBackend.MATH):
                return per_sample({n: p.detach() for n, p in self.trainable}, x, y)

        self.run = run

    def forward(self, x, y):
        return x, y

    def backward(self, xy):
        self.ps = self.run(*xy)

    def clip_sum(self):
        import torch

        norms = torch.stack([g.flatten(1).norm(dim=1) for g in self.ps.values()]).norm(dim=0)
        self.norms = norms
        if self.clip is None:
            self.clip = float(norms.median())
        coef = (self.clip / (norms + 1e-6)).clamp(max=1.0)
        for n, p in self.trainable:
            p.grad = torch.tensordot(coef, self.ps[n], 1)
        self.ps = None

    def noise(self):
        import torch

        for _, p in self.trainable:
            if self.sigma:
                p.grad.add_(torch.randn_like(p), alpha=self.sigma * self.clip)
            p.grad.div_(self.batch)

    def update(self):
        self.clip_sum()
        self.noise()
        self.opt.step()

    def regions(self):
        return [(self, "clip_sum", "clip"), (self, "noise", "noise"), (self.opt, "step", "adam")]


class Opacus(Method):
    gsm_kwargs = {}

    @classmethod
    def prepare(cls):
        import warnings

        warnings.filterwarnings("ignore")
        import opacus  # noqa: F401
        import opacus.optimizers  # noqa: F401
        import opacus.utils.fast_gradient_clipping_utils  # noqa: F401

    def module(self):
        from opacus.grad_sample import GradSampleModule

        return GradSampleModule(self.model, loss_reduction="mean", **self.gsm_kwargs)

    def wrap(self):
        from opacus.optimizers import DPOptimizer

        inner = self.adam()
        self.model = self.module()
        self.opt = DPOptimizer(
            inner, noise_multiplier=self.sigma, max_grad_norm=self.clip, expected_batch_size=self.batch
        )

    def regions(self):
        o = self.opt
        return [
            (o, "clip_and_accumulate", "clip"),
            (o, "add_noise", "noise"),
            (o, "scale_grad", "scale"),
            (o.original_optimizer, "step", "adam"),
        ]


@method
class OpacusHooks(Opacus):
    name, note = "opacus_hooks", "GradSampleModule, grad_sample_mode=hooks, flat clipping"


@method
class OpacusFunctorch(Opacus):
    name, note = "opacus_functorch", "GradSampleModule(force_functorch=True)"
    gsm_kwargs = {"force_functorch": True}


@method
class OpacusEW(Opacus):
    name, note = "opacus_ew", "GradSampleModuleExpandedWeights"

    def module(self):
        from opacus.grad_sample import GradSampleModuleExpandedWeights

        return GradSampleModuleExpandedWeights(self.model, loss_reduction="mean")


@method
class OpacusGhost(Opacus):
    name, note = "opacus_ghost", "ghost / fast gradient clipping, two backward passes"

    def wrap(self):
        from opacus.grad_sample import GradSampleModuleFastGradientClipping
        from opacus.optimizers import DPOptimizerFastGradientClipping
        from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

        inner = self.adam()
        self.model = GradSampleModuleFastGradientClipping(
            self.model, max_grad_norm=self.clip, use_ghost_clipping=True
        )
        self.opt = DPOptimizerFastGradientClipping(
            inner, noise_multiplier=self.sigma, max_grad_norm=self.clip, expected_batch_size=self.batch
        )
        self.loss = DPLossFastGradientClipping(self.model, self.opt, self.loss)

    def regions(self):
        o = self.opt
        return [
            (self.model, "get_clipping_coef", "coef"),
            (o, "accumulate", "accumulate"),
            (o, "add_noise", "noise"),
            (o, "scale_grad", "scale"),
            (o.original_optimizer, "step", "adam"),
        ]


def stub_packages(*roots):
    """Import hook: any attribute of these packages becomes an empty class or module.

    fastDP and private-transformers import Hugging Face classes only for
    isinstance checks on models that are not used here.
    """
    import importlib.abc
    import importlib.machinery
    import types

    from torch import nn

    class Stub(types.ModuleType):
        __path__ = []

        def __getattr__(self, attr):
            if attr.startswith("__"):
                raise AttributeError(attr)
            if attr[:1].isupper() or "Conv1D" in attr:
                value = type(attr, (nn.Module,), {})
            elif attr == "logging":
                import logging

                value = types.SimpleNamespace(get_logger=logging.getLogger)
            else:
                value = importlib.import_module(self.__name__ + "." + attr)
            setattr(self, attr, value)
            return value

    class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
        def find_spec(self, fullname, path=None, target=None):
            if fullname.split(".")[0] in roots:
                return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

        def create_module(self, spec):
            return Stub(spec.name)

        def exec_module(self, mod):
            pass

    sys.meta_path.insert(0, Finder())


class FastDP(Method):
    """awslabs/fast-differential-privacy, book-keeping; source tree at $FASTDP_SRC."""

    mode = "MixOpt"
    origin = False

    @classmethod
    def prepare(cls):
        import warnings

        warnings.filterwarnings("ignore")
        stub_packages("transformers")
        sys.path.insert(0, os.environ["FASTDP_SRC"])
        import fastDP  # noqa: F401

    def wrap(self):
        from fastDP import PrivacyEngine

        self.opt = self.adam()
        origin = None
        if self.origin:
            # the first trainable layer's bias (else weight) carries the backward pass
            first = self.trainable[0][0].rsplit(".", 1)[0]
            names = [n for n, _ in self.trainable if n.rsplit(".", 1)[0] == first]
            origin = [names[-1]]
        PrivacyEngine(
            self.model,
            batch_size=self.batch,
            sample_size=100 * self.batch,
            epochs=1,
            noise_multiplier=self.sigma,
            max_grad_norm=self.clip,
            clipping_mode=self.mode,
            clipping_fn="Abadi",
            clipping_style="all-layer",
            loss_reduction="mean",
            origin_params=origin,
        ).attach(self.opt)
        supported = sum(
            p.numel() for _, l in self.opt.privacy_engine.named_layers for p in l.parameters(recurse=False)
        )
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


@method
class FastDPMixOpt(FastDP):
    name, note = "fastdp_bk", "fastDP BK-MixOpt, origin_params=None (library default)"


@method
class FastDPMixOptOrigin(FastDP):
    name, note, origin = "fastdp_bk_origin", "fastDP BK-MixOpt + origin-parameter trick", True


@method
class PrivateTransformers(Method):
    name, note = "pt_ghost", "private-transformers ghost clipping; source tree at $PT_SRC"

    @classmethod
    def prepare(cls):
        import types
        import warnings

        warnings.filterwarnings("ignore")
        stub_packages("transformers")

        class ContainerMeta(type):
            def all(cls):
                return sorted(v for k, v in vars(cls).items() if not k.startswith("_"))

        utils = types.ModuleType("ml_swissknife.utils")
        utils.ContainerMeta = ContainerMeta
        utils.handle_unused_kwargs = lambda kw, *a: None
        pkg = types.ModuleType("ml_swissknife")
        pkg.utils = utils
        sys.modules["ml_swissknife"], sys.modules["ml_swissknife.utils"] = pkg, utils
        sys.path.insert(0, os.environ["PT_SRC"])
        import private_transformers  # noqa: F401

    def wrap(self):
        from private_transformers import PrivacyEngine
        from private_transformers.supported_layers_grad_samplers import _supported_layers_grad_samplers as sup

        bad = {
            type(m).__name__
            for m in self.model.modules()
            if any(p.requires_grad for p in m.parameters(recurse=False)) and type(m) not in sup
        }
        if bad:
            raise Unsupported(f"private-transformers has no sampler for {sorted(bad)}")
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
        from torch.nn import functional as F

        self.opt.zero_grad()
        self.losses = F.cross_entropy(self.model(x), y, reduction="none")

    def backward(self, _):
        pass  # both backward passes run inside step

    def update(self):
        self.opt.step(loss=self.losses)

    def regions(self):
        pe = self.opt.privacy_engine
        return [
            (self.opt, "original_step", "adam"),
            (pe, "_double_backward", "two backwards"),
            (pe, "_create_noisy_clipped_gradient", "noise+scale"),
        ]


# --------------------------------------------------------------------------
# Worker: one (workload, method) in a fresh process, commands on stdin
# --------------------------------------------------------------------------


def rss_now():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_reset():
    try:
        with open("/proc/self/clear_refs", "w") as f:
            f.write("5")
        return True
    except OSError:
        return False


def peak_now():
    with open("/proc/self/status") as f:
        for line in f:
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024


def make_session(wname, mname, clip, sigma, seed=0):
    cls = METHODS[mname]
    model, x, y = build_workload(wname, seed)
    ses = cls(WORKLOADS[wname]["batch"], clip, sigma)
    return ses, model, x, y


def worker(args):
    import resource

    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    say = lambda **kw: print(json.dumps(kw), file=out, flush=True)
    try:
        import torch

        torch.set_num_threads(args.threads)
        METHODS[args.method].prepare()
        ses, model, x, y = make_session(args.workload, args.method, args.clip, args.sigma)
        total = sum(p.numel() for p in model.parameters())
        train = sum(p.numel() for p in model.parameters() if p.requires_grad)
        ru0 = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        peak_reset()
        rss0 = rss_now()
        ses.setup(model)
        t = time.perf_counter()
        for _ in range(args.warmup):
            ses.step(x, y)
        warm = (time.perf_counter() - t) / args.warmup
        say(ok=True, params=total, trainable=train, warm=warm, rss_base=rss0)
    except Exception as e:  # a peer that cannot run a workload is a result, too
        if not isinstance(e, Unsupported) and args.verbose:
            import traceback

            traceback.print_exc()
        say(
            ok=False,
            error=f"{type(e).__name__}: {str(e).strip().splitlines()[0][:300] if str(e).strip() else ''}",
        )
        return
    for line in sys.stdin:
        n = int(line)
        wall, cpu = [], []
        for _ in range(n):
            t, c = time.perf_counter(), time.process_time()
            ses.step(x, y)
            wall.append(time.perf_counter() - t)
            cpu.append(time.process_time() - c)
        ru1 = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        say(wall=wall, cpu=cpu, peak_growth=peak_now() - rss0, ru_growth=ru1 - ru0)


class Client:
    def __init__(self, args, wname, mname):
        cmd = [
            sys.executable,
            os.path.abspath(__file__),
            "--worker",
            "--workload",
            wname,
            "--method",
            mname,
            "--threads",
            str(args.threads),
            "--clip",
            str(args.clip),
            "--sigma",
            str(args.sigma),
            "--warmup",
            str(args.warmup),
        ] + (["--verbose"] if args.verbose else [])
        cmd += ["--batch", str(args.batch)] if args.batch else []
        cmd += ["--seq", str(args.seq)] if args.seq else []
        err = None if args.verbose else subprocess.DEVNULL
        self.p = subprocess.Popen(cmd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, text=True)
        self.info = self.read()

    def read(self):
        line = self.p.stdout.readline()
        if not line:
            return {"ok": False, "error": f"worker died (exit {self.p.wait()})"}
        return json.loads(line)

    def run(self, n):
        self.p.stdin.write(f"{n}\n")
        self.p.stdin.flush()
        return self.read()

    def close(self):
        self.p.stdin.close()
        self.p.wait()


def bench(args):
    results = {}
    for w in args.workloads:
        clients, rows = {}, {}
        for m in args.methods:
            c = Client(args, w, m)
            rows[m] = dict(c.info, note=METHODS[m].note)
            if c.info["ok"]:
                clients[m] = c
            print(
                f"  {w} {m}: "
                + (f"ready, {c.info['warm'] * 1e3:.0f} ms warm-up step" if c.info["ok"] else c.info["error"]),
                file=sys.stderr,
                flush=True,
            )
        rounds = {m: [] for m in clients}
        for _ in range(args.reps):
            for m, c in clients.items():
                n = max(1, min(args.max_steps, int(args.slice / c.info["warm"])))
                rounds[m].append(c.run(n))
        for m, c in clients.items():
            c.close()
            wall = [t for r in rounds[m] for t in r["wall"]]
            cpu = [t for r in rounds[m] for t in r["cpu"]]
            rows[m].update(
                steps=len(wall),
                median=statistics.median(wall),
                min=min(wall),
                cpu_median=statistics.median(cpu),
                peak_growth=rounds[m][-1]["peak_growth"],
                ru_growth=rounds[m][-1]["ru_growth"],
                cpu_min=min(cpu),
                round_medians=[statistics.median(r["wall"]) for r in rounds[m]],
            )
        if "plain" in clients:
            base = rows["plain"]
            for m in clients:
                r = rows[m]
                r["ratio"] = statistics.median(
                    a / b for a, b in zip(r["round_medians"], base["round_medians"])
                )
                r["ratio_min"] = r["min"] / base["min"]
                r["ratio_cpu"] = r["cpu_min"] / base["cpu_min"]
                r["mem_ratio"] = r["peak_growth"] / base["peak_growth"]
        results[w] = rows
        print_table(w, rows)
    return results


def print_table(w, rows):
    first = next(iter(r for r in rows.values() if r["ok"]), None)
    print(
        f"\n### {w}: {WORKLOADS[w]['note']}; B={WORKLOADS[w]['batch']}"
        + (f"; {first['params']:,} parameters, {first['trainable']:,} trainable" if first else "")
    )
    print(
        "| method | median ms | min ms | ratio (paired median) | ratio of mins | ratio of min CPU time | peak RSS growth MB | mem ratio |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for m, r in rows.items():
        if not r["ok"]:
            print(f"| {m} | – | – | – | – | – | – | {r['error']} |")
            continue
        f = lambda k: f"{r[k]:.2f}" if k in r else "–"
        print(
            f"| {m} | {r['median'] * 1e3:.1f} | {r['min'] * 1e3:.1f} | {f('ratio')} | {f('ratio_min')} | {f('ratio_cpu')} "
            f"| {r['peak_growth'] / 2**20:.0f} | {f('mem_ratio')} |"
        )
    sys.stdout.flush()


# --------------------------------------------------------------------------
# Correctness, micro-benchmarks, profile (each in one child process)
# --------------------------------------------------------------------------


def check(args):
    """Noise 0; clip at the median norm so that half of the samples are clipped.

    The reference is the vmap baseline in float64; every method, vmap itself
    included, runs in float32.  A pre-activation within rounding of a ReLU's
    kink makes float32 and float64 differ by about 1e-3 for that sample
    (W3ws), so agreement with vmap in float32 counts as well.
    """
    import torch

    torch.set_num_threads(args.threads)
    report = {}
    for m in args.methods:
        METHODS[m].prepare()
    for w in args.workloads:
        ses, model, x, y = make_session(w, "vmap", None, 0.0, args.seed)
        if hasattr(model, "pos"):
            model.pos = model.pos.double()
        ses.setup(model.double())
        ses.step(x.double() if x.is_floating_point() else x, y)
        norms, clip = ses.norms, ses.clip
        ref = {n: g.clone() for n, g in ses.grads().items()}
        flat = torch.cat([g.flatten() for g in ref.values()])
        ses, model, x, y = make_session(w, "vmap", clip, 0.0, args.seed)
        ses.setup(model)
        ses.step(x, y)
        flat32 = torch.cat([ses.grads()[n].flatten() for n in ref])
        report[w] = {"clip": clip, "norm_min": float(norms.min()), "norm_max": float(norms.max())}
        print(f"{w}: per-sample norms {norms.min():.3g}..{norms.max():.3g}, clip {clip:.3g}", flush=True)
        for m in args.methods:
            if not METHODS[m].private:
                continue
            try:
                ses, model, x, y = make_session(w, m, clip, 0.0, args.seed)
                so, sys.stdout = sys.stdout, open(os.devnull, "w")
                try:
                    ses.setup(model)
                    ses.step(x, y)
                finally:
                    sys.stdout = so
                got = ses.grads()
                mine = torch.cat([got[n].flatten() for n in ref])
                rel = float((mine - flat).norm() / flat.norm())
                rel32 = float((mine.double() - flat32.double()).norm() / flat.norm())
                worst = max(
                    (float((got[n] - g).norm() / g.norm().clamp(min=1e-12)), n)
                    for n, g in ref.items()
                    if g.norm() > 1e-6 * flat.norm()
                )
                ok = min(rel, rel32) < 1e-4
                report[w][m] = {
                    "rel": rel,
                    "rel_vmap32": rel32,
                    "worst_param": worst[1],
                    "worst_rel": worst[0],
                    "ok": ok,
                }
                print(
                    f"  {m:18s} vs vmap float64 {rel:.2e}, vs vmap float32 {rel32:.2e}, worst parameter {worst[1]} "
                    f"{worst[0]:.2e}  {'ok' if ok else 'DIFFERS'}",
                    flush=True,
                )
            except Exception as e:
                report[w][m] = {"error": f"{type(e).__name__}: {str(e)[:300]}"}
                print(
                    f"  {m:18s} {type(e).__name__}: {str(e).strip().splitlines()[0][:200] if str(e) else ''}",
                    flush=True,
                )
            ses = model = None
    return report


def best(fn, seconds=1.0, least=5):
    fn()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < least:
        t = time.perf_counter()
        fn()
        times.append(time.perf_counter() - t)
    return {"median": statistics.median(times), "min": min(times)}


def micro(args):
    import torch

    report = {}

    def put(name, r, per=1.0):
        report[name] = {k: v / per for k, v in r.items()}
        print(
            f"{name:58s} median {report[name]['median'] * 1e3:9.3f} ms   min {report[name]['min'] * 1e3:9.3f} ms",
            flush=True,
        )

    for threads in (1, 2):
        torch.set_num_threads(threads)
        for shape, count in (((10_000_000,), 1), ((250, 1000), 40)):
            ps = [torch.nn.Parameter(torch.randn(shape)) for _ in range(count)]
            for p in ps:
                p.grad = torch.randn_like(p)
            for label, kw in (
                ("default", {}),
                ("foreach=True", {"foreach": True}),
                ("fused=True", {"fused": True}),
            ):
                opt = torch.optim.Adam(ps, lr=1e-3, **kw)
                put(f"Adam {label}, 10M params in {count} tensor(s), {threads} thr", best(opt.step))
        n = 8_000_000
        buf = torch.empty(n)
        g = torch.randn(n)
        put(f"torch.randn per 1M, {threads} thr", best(lambda: torch.randn(n)), n / 1e6)
        put(f"buf.normal_() per 1M, {threads} thr", best(lambda: buf.normal_()), n / 1e6)
        put(
            f"torch.normal(0, s, size) per 1M, {threads} thr",
            best(lambda: torch.normal(0, 1.5, size=(n,))),
            n / 1e6,
        )
        put(f"buf.uniform_() per 1M, {threads} thr", best(lambda: buf.uniform_()), n / 1e6)
        put(f"g.add_(randn) per 1M, {threads} thr", best(lambda: g.add_(torch.randn(n), alpha=1e-3)), n / 1e6)
        put(f"g.add_(other) per 1M, {threads} thr", best(lambda: g.add_(buf, alpha=1e-3)), n / 1e6)
    return report


def profile(args):
    import resource

    import torch

    torch.set_num_threads(args.threads)
    report = {}
    for m in args.methods:
        METHODS[m].prepare()
    for w in args.workloads:
        for m in args.methods:
            ses, model, x, y = make_session(w, m, args.clip, args.sigma)
            so, sys.stdout = sys.stdout, sys.stderr
            try:
                ses.setup(model)
                for _ in range(args.warmup):
                    ses.step(x, y)
            except Exception as e:
                sys.stdout = so
                print(f"{w} {m}: {type(e).__name__}: {e}")
                continue
            sys.stdout = so
            rows, acc = [], {}

            def timed(fn, label):
                def call(*a, **k):
                    t = time.perf_counter()
                    try:
                        return fn(*a, **k)
                    finally:
                        acc[label] = acc.get(label, 0.0) + time.perf_counter() - t

                return call

            for obj, attr, label in ses.regions():
                setattr(obj, attr, timed(getattr(obj, attr), label))
            use0 = resource.getrusage(resource.RUSAGE_SELF)
            for _ in range(args.reps):
                acc.clear()
                t0 = time.perf_counter()
                loss = ses.forward(x, y)
                t1 = time.perf_counter()
                ses.backward(loss)
                t2 = time.perf_counter()
                ses.update()
                t3 = time.perf_counter()
                rows.append(
                    {"forward": t1 - t0, "backward": t2 - t1, "update": t3 - t2, "step": t3 - t0, **acc}
                )
            use1 = resource.getrusage(resource.RUSAGE_SELF)
            user, kernel = use1.ru_utime - use0.ru_utime, use1.ru_stime - use0.ru_stime
            faults = (use1.ru_minflt - use0.ru_minflt) // args.reps
            med = {k: statistics.median(r[k] for r in rows) for k in rows[0]}
            print(f"\n## {w} {m}: step {med['step'] * 1e3:.1f} ms")
            print(
                "  "
                + ", ".join(
                    f"{k} {v * 1e3:.1f} ms ({100 * v / med['step']:.0f}%)"
                    for k, v in med.items()
                    if k != "step"
                )
            )
            print(
                f"  CPU per step: user {user / args.reps * 1e3:.1f} ms, kernel {kernel / args.reps * 1e3:.1f} ms "
                f"({100 * kernel / (user + kernel):.0f}%), {faults} page faults"
            )
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as prof:
                for _ in range(2):
                    ses.step(x, y)
            ev = sorted(prof.key_averages(), key=lambda e: -e.self_cpu_time_total)
            tot = sum(e.self_cpu_time_total for e in ev)
            top = [(e.key, 100 * e.self_cpu_time_total / tot, e.count // 2) for e in ev[: args.top]]
            for k, share, n in top:
                print(f"    {share:5.1f}%  {n:5d} calls  {k}")
            sys.stdout.flush()
            report.setdefault(w, {})[m] = {
                "phases": med,
                "ops": top,
                "user": user / args.reps,
                "kernel": kernel / args.reps,
                "page_faults": faults,
            }
            ses = model = None
    return report


# --------------------------------------------------------------------------


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    ap.add_argument("--workloads", default=",".join(WORKLOADS))
    ap.add_argument("--methods", default=",".join(METHODS))
    ap.add_argument("--reps", type=int, default=5, help="rounds over all methods")
    ap.add_argument("--slice", type=float, default=0.5, help="seconds a method gets per round")
    ap.add_argument("--max-steps", type=int, default=20)
    ap.add_argument("--warmup", type=int, default=3)
    ap.add_argument("--threads", type=int, default=os.cpu_count())
    ap.add_argument("--clip", type=float, default=1.0)
    ap.add_argument("--sigma", type=float, default=1.0)
    ap.add_argument("--batch", type=int, help="override every workload's batch size")
    ap.add_argument("--seq", type=int, help="tokens of the text workloads")
    ap.add_argument("--seed", type=int, default=0, help="of --check")
    ap.add_argument("--top", type=int, default=10)
    ap.add_argument("--json")
    ap.add_argument("--verbose", action="store_true")
    for flag in ("check", "micro", "profile", "list", "worker"):
        ap.add_argument("--" + flag, action="store_true")
    ap.add_argument("--workload", help=argparse.SUPPRESS)
    ap.add_argument("--method", help=argparse.SUPPRESS)
    args = ap.parse_args()
    global SEQUENCE
    SEQUENCE = args.seq or SEQUENCE
    if args.batch:
        for spec in WORKLOADS.values():
            spec["batch"] = args.batch
    if args.worker:
        return worker(args)
    args.workloads, args.methods = args.workloads.split(","), args.methods.split(",")
    for given, known in ((args.workloads, WORKLOADS), (args.methods, METHODS)):
        bad = [g for g in given if g not in known]
        if bad:
            ap.error(f"unknown {bad}; known: {list(known)}")
    if args.list:
        for n, s in WORKLOADS.items():
            print(f"{n:18s} B={s['batch']}  {s['note']}")
        for n, c in METHODS.items():
            print(f"{n:18s} {c.note}")
        return
    start = time.time()
    kind = next((k for k in ("check", "micro", "profile") if getattr(args, k)), "bench")
    result = {"kind": kind, "argv": sys.argv[1:], "threads": args.threads, "loadavg_start": os.getloadavg()}
    result["results"] = {"check": check, "micro": micro, "profile": profile, "bench": bench}[kind](args)
    result.update(loadavg_end=os.getloadavg(), seconds=time.time() - start)
    print(
        f"\n{kind}: {result['seconds']:.0f} s, load {result['loadavg_start'][0]:.1f} -> {result['loadavg_end'][0]:.1f}",
        file=sys.stderr,
    )
    if args.json:
        with open(args.json, "w") as f:
            json.dump(result, f, indent=1)


if __name__ == "__main__":
    main()
