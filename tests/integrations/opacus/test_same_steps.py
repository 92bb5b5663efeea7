"""A script makes the same steps with Opacus and with `adamas.integrations.opacus`, without noise."""

import copy

import pytest
import torch

pytest.importorskip("opacus")

import opacus
from opacus.utils.batch_memory_manager import BatchMemoryManager as TheirManager
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from adamas.integrations.opacus import BatchMemoryManager, PrivacyEngine
from tests.support.opacus_loops import blobs, mlp
from tests.support.opacus_pairs import conv_model, images, opacus_warnings, seeded

pytestmark = [*opacus_warnings, pytest.mark.slow]  # Opacus takes seconds to import


class Tokens(nn.Module):
    """An embedding, averaged over the tokens of an example."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 3)

    def forward(self, tokens):
        return self.head(self.norm(self.embedding(tokens)).mean(1))


class NextTokens(nn.Module):
    """Logits for each token of an example."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.head = nn.Linear(6, 11)

    def forward(self, tokens):
        return self.head(torch.tanh(self.embedding(tokens)))


def token_data(n=24):
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, 11, (n, 5), generator=generator)
    return tokens, torch.randint(0, 3, (n,), generator=generator)


def next_data(n=24):
    tokens, _ = token_data(n)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def regression_data(n=24):
    x, _ = blobs(n)
    return x, torch.randn(n, 3, generator=torch.Generator().manual_seed(4))


def flat(criterion):
    return lambda output, y: criterion(output.view(-1, output.size(-1)), y.view(-1))


CASES = {
    "mlp": (mlp, lambda: blobs(24), nn.CrossEntropyLoss),
    "smoothed": (mlp, lambda: blobs(24), lambda **k: nn.CrossEntropyLoss(label_smoothing=0.1, **k)),
    "regression": (mlp, regression_data, nn.MSELoss),
    "cnn": (conv_model, lambda: images(12), nn.CrossEntropyLoss),
    "embedding": (lambda: seeded(Tokens()), token_data, nn.CrossEntropyLoss),
    "next token": (
        lambda: seeded(NextTokens()),
        next_data,
        lambda **k: flat(nn.CrossEntropyLoss(**k)),
    ),
}
OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.5, momentum=0.9),
    "adam": lambda params: torch.optim.Adam(params, lr=0.01),
}


def weights_of(engine, manager, case, *, reduction="mean", mode="hooks", optimizer="sgd", physical=None):
    """Runs one script. All examples are in each batch, since both draw batches at random otherwise."""
    make_model, make_data, make_criterion = CASES[case]
    model, data = make_model(), TensorDataset(*make_data())
    start = copy.deepcopy(model)
    criterion = make_criterion(reduction=reduction)
    opt = OPTIMIZERS[optimizer](model.parameters())
    loader = DataLoader(data, batch_size=len(data))
    wrapped, opt, *criteria, loader = engine.make_private(
        module=model,
        optimizer=opt,
        data_loader=loader,
        criterion=criterion,
        noise_multiplier=0.0,
        max_grad_norm=0.5,
        poisson_sampling=False,
        loss_reduction=reduction,
        grad_sample_mode=mode,
    )
    (criterion,) = criteria or [criterion]
    for _ in range(3):
        with manager(
            data_loader=loader, max_physical_batch_size=physical or len(data), optimizer=opt
        ) as physical_loader:
            for x, y in physical_loader:
                opt.zero_grad()
                loss = criterion(wrapped(x), y)
                loss.backward()
                opt.step()
    moved = max((p - q).abs().max() for p, q in zip(model.parameters(), start.parameters(), strict=True))
    assert moved > 0.01
    return list(model.parameters())


def compare(case, **options):
    theirs = weights_of(opacus.PrivacyEngine(), TheirManager, case, **options)
    ours = weights_of(PrivacyEngine(), BatchMemoryManager, case, **options)
    for p, q in zip(ours, theirs, strict=True):
        # Opacus adds 1e-6 to the norm that it divides by.
        torch.testing.assert_close(p, q, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("case", CASES)
def test_a_loop_makes_the_steps_of_opacus(case):
    compare(case)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_reductions_and_optimizers_make_the_steps_of_opacus(reduction, optimizer):
    compare("mlp", reduction=reduction, optimizer=optimizer)


@pytest.mark.parametrize("mode", ["functorch", "ew", "ghost"])
def test_modes_make_the_steps_of_opacus(mode):
    compare("mlp", mode=mode)


def test_physical_batches_make_the_steps_of_opacus():
    compare("mlp", physical=7)


def test_a_loss_divided_for_accumulation_is_clipped_as_in_opacus():
    CASES["divided"] = (
        mlp,
        lambda: blobs(24),
        lambda **k: lambda output, y: 0.3 * nn.CrossEntropyLoss(**k)(output, y) / 2 + 1.0,
    )
    try:
        compare("divided")
    finally:
        del CASES["divided"]


def test_ignored_labels_make_the_steps_of_the_ghost_criterion_of_opacus():
    tokens, y = next_data()
    y[:8, 2:] = -100
    y[8, 1:] = -100
    found = []
    for engine in (opacus.PrivacyEngine(), PrivacyEngine()):
        model = seeded(NextTokens())
        module, optimizer, criterion, loader = engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
            criterion=nn.CrossEntropyLoss(),
            data_loader=DataLoader(TensorDataset(tokens, y), batch_size=len(y)),
            noise_multiplier=0.0,
            max_grad_norm=0.5,
            poisson_sampling=False,
            grad_sample_mode="ghost",
        )
        for x, labels in loader:
            output = module(x)
            criterion(output.view(-1, 11), labels.view(-1), shape=output.shape).backward()
            optimizer.step()
        found.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=2e-5)
    assert (
        found[0] - torch.cat([p.detach().flatten() for p in seeded(NextTokens()).parameters()])
    ).norm() > 0.01
