"""Losses, data sets and models that users pass by mistake are refused with the remedy, before any release."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, RandomSampler, TensorDataset, WeightedRandomSampler

import adamas
from adamas._guards.memory import Memory
from adamas._guards.tokenizers import put_back
from adamas.errors import EvaluationModeWarning
from tests.support.custom_losses import make_run_with
from tests.support.small_runs import N, finish, loss, make_data, make_model

FOR_MODEL = r"adamas\.integrations\.losses\.for_model\(model\)"
X, Y = make_data().tensors


# --- losses ------------------------------------------------------------------------------------------------


class ByModel(nn.Module):
    """A loss that is a module, and takes model and batch."""

    def forward(self, model, batch):
        return loss(model, batch)


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        (nn.CrossEntropyLoss(), "CrossEntropyLoss"),
        (nn.CrossEntropyLoss(reduction="none"), "CrossEntropyLoss"),
        (nn.CrossEntropyLoss, "CrossEntropyLoss"),
        (nn.MSELoss(), "MSELoss"),
        (nn.TripletMarginLoss(), "TripletMarginLoss"),
        (F.cross_entropy, "cross_entropy"),
        (lambda model, x, y: F.cross_entropy(model(x), y, reduction="none"), r"one of \(model, x, y\)"),
        (lambda batch: batch, r"one of \(batch\)"),
        (None, "None"),
    ],
)
def test_what_is_not_a_loss_of_model_and_batch_is_refused_with_an_example(wrong, name):
    with pytest.raises(TypeError, match=rf"got {name}.*def loss\(model, batch\): x, y = batch.*{FOR_MODEL}"):
        make_run_with(wrong)


@pytest.mark.parametrize(
    "right", [ByModel(), lambda *given: loss(*given), lambda m, b, w=1.0: w * loss(m, b)]
)
def test_what_can_be_called_with_model_and_batch_is_a_loss(right):
    assert finish(make_run_with(right)).isfinite().all()


def test_a_scalar_and_an_output_that_is_no_tensor_are_refused_with_the_remedy():
    with pytest.raises(adamas.UnsupportedError, match=rf'a scalar.*reduction="none".*{FOR_MODEL}'):
        make_run_with(lambda model, batch: loss(model, batch).mean())
    with pytest.raises(TypeError, match=f"got dict.*{FOR_MODEL}"):
        make_run_with(lambda model, batch: {"loss": loss(model, batch)})


# --- data --------------------------------------------------------------------------------------------------


WEIGHTED = WeightedRandomSampler([1.0] * N, N)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ((X, Y), r"tuple of arrays.*TensorDataset\(X, y\)"),
        ([X, Y], r"list of arrays.*TensorDataset\(X, y\)"),
        ((X.numpy(), Y.numpy()), r"tuple of arrays.*TensorDataset\(X, y\)"),
        ((X.tolist(), Y.tolist()), r"tuple of arrays.*TensorDataset\(X, y\)"),
        ([make_data(), make_data()], r"a list of 2\. Pass one of them"),
        ({"x": X, "y": Y}, r"dict of 'x', 'y'.*TensorDataset\(X, y\)"),
        ({"train": make_data(), "test": make_data()}, r"dict of 'train', 'test'.*data\['train'\]"),
        ({"a": make_data()}, r"data\['a'\]"),
        ("train.csv", "got a string"),
        (RandomSampler(Y), r"got the sampler RandomSampler.*sampling='poisson'"),
        (WEIGHTED, "got the sampler WeightedRandomSampler.*weigh the classes"),
        (DataLoader(make_data()), "loader.dataset"),
        (
            DataLoader(make_data(), sampler=WEIGHTED),
            "loader.dataset.*WeightedRandomSampler.*weigh the classes",
        ),
    ],
)
def test_what_is_not_a_data_set_of_examples_is_refused_with_the_remedy(wrong, message):
    with pytest.raises(TypeError, match=message):
        make_run_with(loss, data=wrong)


def test_weights_of_a_loader_are_mentioned_only_if_it_has_them():
    with pytest.raises(TypeError) as error:
        make_run_with(loss, data=DataLoader(make_data()))
    assert "Weighted" not in str(error.value)


def test_tables_are_refused_with_the_remedy():
    pandas = pytest.importorskip("pandas")
    table, y = pandas.DataFrame(X.numpy()), pandas.Series(Y.numpy())
    with pytest.raises(TypeError, match=r"got a DataFrame.*to_numpy\(\).*adamas\.tabular"):
        make_run_with(loss, data=table)
    for columns in ((table, y), (table.to_numpy(), y), (table, Y.numpy())):
        with pytest.raises(TypeError, match=r"tuple of arrays.*TensorDataset\(X, y\).*to_numpy\(\)"):
            make_run_with(loss, data=columns)


def test_sparse_matrices_are_refused_with_the_remedy():
    sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(TypeError, match=r"got a csr_matrix.*toarray\(\)"):
        make_run_with(loss, data=sparse.csr_matrix(X.numpy()))


@pytest.mark.parametrize(
    "examples",
    [
        list(zip(X, Y, strict=True)),
        dict(enumerate(zip(X, Y, strict=True))),
        list(zip(X.numpy(), Y.numpy(), strict=True)),
    ],
)
def test_examples_in_lists_and_dictionaries_are_data_sets(examples):
    weights = finish(make_run_with(loss, data=examples))
    assert torch.equal(weights, finish(make_run_with(loss)))


def test_a_short_list_of_equal_tensors_is_a_data_set():
    def squares(model, batch):
        return model(batch).square().sum(1)

    run = make_run_with(squares, data=[X[0], X[1], X[2]], batch_size=2, delta=0.1)
    assert finish(run).isfinite().all()


def test_a_sampler_of_torch_has_no_accounting():
    with pytest.raises(TypeError, match=r"WeightedRandomSampler, which has no accounting.*poisson"):
        make_run_with(loss, sampling=WEIGHTED)


@pytest.mark.parametrize(
    ("data", "given"),
    [
        (TensorDataset(X.double(), Y), r"batch\[0\] of torch\.float64"),
        (TensorDataset(X.half(), Y), r"batch\[0\] of torch\.float16"),
        (TensorDataset(X.long(), Y), r"batch\[0\] of torch\.int64"),
        (TensorDataset(X, Y.int()), r"batch\[1\] of torch\.int32"),
        (TensorDataset(X, Y.float()), r"batch\[1\] of torch\.float32"),
        (list(zip(X.numpy().astype(np.float64), Y.numpy(), strict=True)), r"batch\[0\] of torch\.float64"),
    ],
)
def test_numbers_of_another_type_than_the_model_takes_are_refused_with_both_types(data, given):
    with pytest.raises(TypeError, match=rf"parameters of torch\.float32.*{given}.*x\.to\(torch\.float32\)"):
        make_run_with(loss, data=data)


def test_targets_of_the_wrong_type_are_refused_with_the_remedy():
    def binary(model, batch):
        x, y = batch
        return F.binary_cross_entropy_with_logits(model(x)[:, 0], y.clamp(max=1), reduction="none")

    with pytest.raises(TypeError, match=r"batch\[1\] of torch\.int64.*other losses to torch\.float32"):
        make_run_with(binary)


def test_lists_of_numbers_are_refused_with_the_remedy():
    rows = [{"x": x.tolist(), "y": int(y)} for x, y in zip(X, Y, strict=True)]
    with pytest.raises(TypeError, match=r"got a list of tensors.*with_format\('torch'\)"):
        make_run_with(lambda model, b: F.cross_entropy(model(b["x"]), b["y"], reduction="none"), data=rows)


def test_a_loss_that_fails_for_one_example_is_refused_with_the_remedy():
    def squeezed(model, batch):
        x, _ = batch
        output = model(x)[:, :1].squeeze()
        return F.binary_cross_entropy_with_logits(output, torch.zeros_like(x[:, 0]), reduction="none")

    with pytest.raises(adamas.UnsupportedError, match=r"single example \(ValueError\).*squeeze\(1\)"):
        make_run_with(squeezed)


def test_a_loss_that_draws_random_values_is_not_said_to_mix_examples():
    def noisy(model, batch):
        x, y = batch
        return loss(model, (x + torch.randn_like(x), y))

    with pytest.raises(adamas.UnsupportedError, match=r"draws random values.*__getitem__"):
        make_run_with(noisy)
    mixing = "mixes the examples of a batch"
    with pytest.raises(adamas.UnsupportedError, match=mixing):
        make_run_with(lambda model, batch: loss(model, (batch[0] - batch[0].mean(0), batch[1])))


def test_other_errors_of_a_loss_stay_as_they_are():
    def failing(model, batch):
        raise RuntimeError("not of the data")

    with pytest.raises(RuntimeError, match="not of the data"):
        make_run_with(failing)


def test_types_that_agree_are_not_blamed():
    def failing(model, batch):
        raise RuntimeError("a dtype of something else")

    with pytest.raises(RuntimeError, match="a dtype of something else"):
        make_run_with(failing, data=X)


def test_examples_of_several_shapes_need_a_collate_function():
    with pytest.raises(TypeError, match=r"default_collate.*collate_fn that pads") as error:
        make_run_with(loss, data=[(torch.ones(1 + i % 5), i % 2) for i in range(N)])
    assert not any(digit in str(error.value) for digit in "0123456789")  # no length of an example


def test_an_error_of_the_data_set_stays_as_it_is():
    class Broken(TensorDataset):
        def __getitem__(self, index):
            if index == 1:
                raise ValueError("a broken file")
            return super().__getitem__(index)

    with pytest.raises(ValueError, match="a broken file"):
        make_run_with(loss, data=Broken(X, Y))


def test_a_column_that_the_model_does_not_take_is_named():
    rows = [{"input": x, "number": i} for i, x in enumerate(X)]
    with pytest.raises(TypeError, match=r"takes no 'number'.*remove_columns\(\['number'\]\)"):
        make_run_with(
            lambda model, batch: nn.Linear.forward(model, **batch).sum(1), nn.Linear(5, 2), data=rows
        )


# --- the mode of the model ---------------------------------------------------------------------------------


def with_dropout(p=0.1):
    return nn.Sequential(nn.Linear(5, 4), nn.Dropout(p), nn.Linear(4, 2))


def test_a_model_in_evaluation_mode_with_dropout_gets_a_warning_and_stays_so():
    model = with_dropout().eval()
    with pytest.warns(EvaluationModeWarning, match=r"model\.train\(\)") as seen:
        make_run_with(loss, model)
    assert [one.filename for one in seen] == [make_run_with.__code__.co_filename]
    assert not any(module.training for module in model.modules())


def partly_evaluating():
    model = with_dropout()
    model[1].eval()
    return model


@pytest.mark.parametrize(
    "model",
    [with_dropout(), partly_evaluating(), with_dropout(0.0).eval(), make_model().eval()],
    ids=["training", "a part evaluates", "no share", "no dropout"],
)
def test_no_other_model_gets_a_warning(model):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_run_with(loss, model)


# --- what a tokenizer remembers ----------------------------------------------------------------------------


def tokenizer_like():
    """Makes an object of a class that claims to be a tokenizer's, as far as the guard looks."""
    kind = type("Tokenizer", (), {"__module__": "transformers.tokenization_utils_base"})
    one = kind()
    one.deprecation_warnings, one.other = {}, {}
    return one


@pytest.mark.parametrize("key", ["word", "max_len_single_sentence", True])
def test_notes_of_warnings_are_put_back_after_a_call_and_say_nothing_within(key):
    one = tokenizer_like()
    one.deprecation_warnings["max_len_sentences_pair"] = False
    memory = Memory({"tokenizer": one}, long=False)
    with put_back(memory.tokenizers):
        assert one.deprecation_warnings["max_len_single_sentence"] is True
        assert one.deprecation_warnings["max_len_sentences_pair"] is True
        one.deprecation_warnings[key] = True
    name = None if key == "max_len_single_sentence" else "tokenizer.deprecation_warnings"
    assert memory.change() == name


@pytest.mark.parametrize("name", ["deprecation_warnings", "other"])
def test_what_else_a_tokenizer_notes_is_memory(name):
    one = tokenizer_like()
    memory = Memory({"tokenizer": one}, long=False)
    assert memory.change() is None
    getattr(one, name)["word"] = True
    assert memory.change() == f"tokenizer.{name}"
