"""Arguments without an exact counterpart are refused by name, before anything is made or spent."""

import inspect
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset, WeightedRandomSampler

from adamas import UnsupportedError
from adamas.integrations.opacus import BatchMemoryManager, PrivacyEngine
from tests.support.opacus_loops import blobs, mlp, private, train

OPTIONS = {
    "max_grad_norm": [1.0, 1.0],
    "batch_first": False,
    "clipping": "per_layer",
    "noise_generator": torch.Generator(),
    "grad_sample_mode": "ghost_fsdp",
    "wrap_model": False,
    "rand_on_empty": True,
}


@pytest.mark.parametrize("epsilon", [None, 3.0])
@pytest.mark.parametrize("name", OPTIONS)
def test_options_are_refused_by_name_with_value_and_remedy(name, epsilon):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(UnsupportedError, match=rf"^{name}=.* is not supported: it "):
        private(model, optimizer=optimizer, epsilon=epsilon, **{name: OPTIONS[name]})
    optimizer.step()  # the optimizer is as it was


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clipping": "adaptive"}, "further releases"),
        ({"grad_sample_mode": "ghost_tp"}, "distributed=True"),
        ({"grad_sample_mode": "no_op"}, "cannot be checked"),
        ({"grad_sample_mode": "other"}, "one of hooks, functorch, ew, ghost"),
        ({"loss_reduction": "none"}, "'mean' or 'sum'"),
        ({"poisson_sampling": None}, "True or False"),
        ({"noise_multiplier": None}, "noise_multiplier"),
        ({"noise_multiplier": 0.001}, "noise_multiplier"),
        ({"max_grad_norm": 0.0}, "clip_norm"),
        ({"max_grad_norm": float("inf")}, "clip_norm"),
        ({"target_unclipped_quantile": 0.5}, "target_unclipped_quantile"),
        ({"epsilon": 3.0, "target_delta": 0.5}, "target_delta=0.5"),
        ({"epsilon": 3.0, "target_delta": None}, "target_delta=None"),
        ({"epsilon": 3.0, "epochs": 0}, "epochs"),
        ({"epsilon": 3.0, "epochs": 1.5}, "epochs"),
        ({"epsilon": 3.0, "epsilon_tolerance": 0.1}, "epsilon_tolerance"),
        ({"epsilon": -1.0}, "epsilon"),
        (
            {"grad_sample_mode": "ghost", "criterion": nn.MSELoss(reduction="sum")},
            "criterion.reduction='sum'",
        ),
    ],
)
def test_values_are_refused(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        private(**options)


DATA = TensorDataset(*blobs())
LOADERS = {
    "sampler=WeightedRandomSampler.*weigh the classes in the loss": {
        "batch_size": 10,
        "sampler": WeightedRandomSampler(torch.ones(60), 60),
    },
    r"sampler=SubsetRandomSampler.*torch\.utils\.data\.Subset": {
        "batch_size": 10,
        "sampler": torch.utils.data.SubsetRandomSampler(range(30)),
    },
    "sampler=RandomSampler": {
        "batch_size": 10,
        "sampler": torch.utils.data.RandomSampler(DATA, replacement=True),
    },
    "batch_sampler": {"batch_sampler": BatchSampler(SequentialSampler(range(30)), 10, False)},
    "without batches": {"batch_size": None},
    "generator": {"batch_size": 10, "shuffle": True, "generator": torch.Generator()},
    "worker_init_fn": {"batch_size": 10, "worker_init_fn": print},
}


@pytest.mark.parametrize("message", LOADERS)
def test_loaders_that_draw_otherwise_are_refused(message):
    model = mlp()
    with pytest.raises(UnsupportedError, match=message):
        PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(DATA, **LOADERS[message]),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )


def test_shuffled_epochs_that_leave_records_out_are_refused():
    with pytest.raises(UnsupportedError, match="drop_last"):
        private(batch_size=25, poisson_sampling=False, loader_options={"drop_last": True})


def test_accountants_and_modes_of_the_engine():
    with pytest.raises(UnsupportedError, match="below the true epsilon"):
        PrivacyEngine(accountant="gdp")
    with pytest.raises(ValueError, match="accountant"):
        PrivacyEngine(accountant="other")
    with pytest.raises(TypeError, match="secure_mode"):
        PrivacyEngine(secure_mode="yes")
    with pytest.raises(ValueError, match="seed=None with noise='secure'"):
        private(engine=PrivacyEngine(secure_mode=True, seed=1))
    assert PrivacyEngine().accountant.mechanism() == "prv"


def test_batch_norm_is_refused_with_its_remedy_and_nothing_is_replaced():
    engine, model = PrivacyEngine(), nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    assert not engine.is_compatible(module=model)
    assert engine.is_compatible(module=mlp())
    for refused in (
        lambda: engine.validate(module=model),
        lambda: engine.get_compatible_module(model),
        lambda: private(model),
    ):
        with pytest.raises(UnsupportedError, match="GroupNorm"):
            refused()
    plain = mlp()
    assert PrivacyEngine.get_compatible_module(plain) is plain


def test_objects_that_are_private_already_are_refused():
    _, module, optimizer, loader = private()
    plain = mlp()
    given = {
        "module": plain,
        "optimizer": torch.optim.SGD(plain.parameters(), lr=0.1),
        "data_loader": DataLoader(DATA, batch_size=10),
    }
    for name, wrapped in (("module", module), ("optimizer", optimizer), ("data_loader", loader)):
        with pytest.raises(TypeError, match=f"Expected {name} as it was before make_private"):
            PrivacyEngine().make_private(**given | {name: wrapped}, noise_multiplier=1.0, max_grad_norm=1.0)


@pytest.mark.slow
def test_objects_of_opacus_are_refused():
    opacus = pytest.importorskip("opacus")
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    theirs = opacus.PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(DATA, batch_size=10),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    plain = mlp()
    given = {
        "module": plain,
        "optimizer": torch.optim.SGD(plain.parameters(), lr=0.1),
        "data_loader": DataLoader(DATA, batch_size=10),
    }
    for name, wrapped in zip(given, theirs, strict=True):
        with pytest.raises(TypeError, match=rf"Expected {name} as it was before Opacus"):
            PrivacyEngine().make_private(**given | {name: wrapped}, noise_multiplier=1.0, max_grad_norm=1.0)


def test_optimizers_that_cannot_take_dense_gradients_or_other_parameters_are_refused():
    model = mlp()
    with pytest.raises(TypeError, match="SparseAdam"):
        private(model, optimizer=torch.optim.SparseAdam(model.parameters()))
    with pytest.raises(TypeError, match="LBFGS"):
        private(model, optimizer=torch.optim.LBFGS(model.parameters()))
    with pytest.raises(ValueError, match=r"0\.weight"):
        private(model, optimizer=torch.optim.SGD(model[2].parameters(), lr=0.1))


def test_a_second_run_of_an_engine_is_refused():
    engine, *_ = private()
    with pytest.raises(RuntimeError, match="data_ledger="):
        private(engine=engine)
    with pytest.raises(RuntimeError, match="make_private to be called first"):
        PrivacyEngine().run  # noqa: B018


def test_the_memory_manager_takes_the_objects_of_one_run():
    _, _, optimizer, loader = private()
    _, _, foreign, _ = private()
    for given, message in (
        ({"max_physical_batch_size": 0}, "max_physical_batch_size"),
        ({"optimizer": foreign}, "Expected optimizer"),
        ({"data_loader": DataLoader(DATA)}, "Expected data_loader"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            BatchMemoryManager(
                **{"data_loader": loader, "optimizer": optimizer, "max_physical_batch_size": 2} | given
            )


def test_an_error_in_the_block_of_the_memory_manager_ends_the_block():
    engine, module, optimizer, loader = private()
    block = BatchMemoryManager(data_loader=loader, max_physical_batch_size=2, optimizer=optimizer)

    def failing():
        with block:
            assert engine.run.loader.micro_batch_size == 2
            raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        failing()
    assert engine.run.loader.micro_batch_size is None
    train(module, optimizer, loader)


@pytest.mark.slow
def test_every_argument_of_opacus_is_an_argument_here_or_on_the_page():
    opacus = pytest.importorskip("opacus")
    manager = pytest.importorskip("opacus.utils.batch_memory_manager").BatchMemoryManager
    page = (Path(__file__).parents[3] / "docs" / "from_opacus.md").read_text()
    pairs = [(manager.__init__, BatchMemoryManager.__init__)]
    for name in ("__init__", "make_private", "make_private_with_epsilon", "get_epsilon"):
        pairs.append((getattr(opacus.PrivacyEngine, name), getattr(PrivacyEngine, name)))
    for name in ("save_checkpoint", "load_checkpoint", "is_compatible", "validate", "get_compatible_module"):
        pairs.append((getattr(opacus.PrivacyEngine, name), getattr(PrivacyEngine, name)))
    for theirs, ours in pairs:
        for name in inspect.signature(theirs).parameters:
            if name != "self":
                assert f"`{name}`" in page or f"`{name}=" in page, (theirs.__name__, name)
                known = name in inspect.signature(ours).parameters
                assert known or name in {"kwargs", *_ONLY_THEIRS}, (theirs.__name__, name)


_ONLY_THEIRS = {
    *("noise_scheduler", "grad_clip_scheduler", "checkpoint_dict", "module_state_dict_kwargs"),
    *("torch_save_kwargs", "module_load_dict_kwargs", "torch_load_kwargs"),
}
