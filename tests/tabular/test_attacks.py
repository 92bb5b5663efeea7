"""One odd value, wherever it stands, changes its own row only, and no error or warning tells of it."""

import math
import warnings

import numpy as np
import pytest
import torch

pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from adamas.tabular import PrivateClassifier, PrivateRegressor, base  # noqa: E402
from adamas.tabular.encoding import codes_of, numbers  # noqa: E402
from adamas.tabular.files import column_names, load_table, read_table  # noqa: E402
from adamas.tabular.tables import as_table, as_target, row_weights  # noqa: E402
from tests.support.patients import FAST  # noqa: E402

pytestmark = pytest.mark.slow  # importing pandas and scikit-learn takes seconds

N, ROW, BIG = 60, 7, 2**53  # float64 does not tell BIG from BIG + 1
X = np.random.default_rng(0).uniform(-1, 1, (N, 2))
LABELS = [int(x > 0) for x in X[:, 0]]
ODD = {
    "text": "unknown",
    "None": None,
    "list": [1],
    "complex": 1j,
    "complex64": np.complex64(1j),
    "array": np.array([1.0, 2.0]),
    "missing": pd.NA,
    "tensor": torch.tensor([1.0, 2.0]),
    "complex tensor": torch.tensor(1j),
}
KINDS = {
    "tuple": tuple,
    "list": list,
    "objects": lambda values: np.fromiter(values, dtype=object),
    "series": lambda values: pd.Series(np.fromiter(values, dtype=object), dtype=object),
}


@pytest.fixture(autouse=True)
def _no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def odd(values, value, row=ROW):
    return [*values[:row], value, *values[row + 1 :]]


def others(values):
    return np.delete(np.asarray(values), ROW, axis=0)


def step(target=LABELS, weights=None, x=X, make=PrivateClassifier, **options):
    """Returns the sum of the gradients of one step."""
    known = {"classes": [0, 1]} if make is PrivateClassifier else {"target_bounds": (-1, 1)}
    one = FAST | known | {"bounds": (-1, 1), "rule": "sgd", "learning_rate": 1.0, "epochs": 1}
    model = make(**(one | {"batch_size": N, "delta": 1e-5} | options)).fit(x, target, weights)
    return N * torch.cat([p.detach().reshape(-1) for p in model.model_.parameters()]).numpy()


WITHOUT = step(weights=odd([1.0] * N, math.nan))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ODD)
def test_an_odd_label_takes_its_row_out_and_nothing_else(name, kind):
    labels = KINDS[kind](odd(LABELS, ODD[name]))
    np.testing.assert_array_equal(others(codes_of(as_target(labels), [0, 1])), others(LABELS))
    np.testing.assert_array_equal(step(labels), WITHOUT)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ODD)
def test_an_odd_weight_takes_its_row_out_and_nothing_else(name, kind):
    weights = KINDS[kind](odd([True] * N, ODD[name]))
    np.testing.assert_array_equal(row_weights(weights, N), odd([1.0] * N, math.nan))
    np.testing.assert_array_equal(step(weights=weights), WITHOUT)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ODD)
def test_an_odd_number_to_predict_takes_its_row_out_and_nothing_else(name, kind):
    target = X[:, 1].tolist()
    found = numbers(as_target(KINDS[kind](odd(target, ODD[name]))))
    np.testing.assert_array_equal(found, odd(target, math.nan))


@pytest.mark.parametrize("name", ODD)
def test_an_odd_cell_is_missing_and_changes_nothing_else(name):
    rows = X.tolist()
    for kind in (list, tuple):
        given = kind(kind(row) for row in odd(rows, [ODD[name], 0.5]))
        table = as_table(given).to_numpy()
        np.testing.assert_array_equal(table, odd(rows, [math.nan, 0.5]))
    cells = [[[1], [2]], [[3], [4]]]  # NumPy would see three dimensions
    assert as_table(cells).shape == as_table([[[1], 2], [3, 4]]).shape == (2, 2)


IDS = [BIG + label for label in LABELS]


@pytest.mark.parametrize("other", [None, 0.5, "?", 10**30])
@pytest.mark.parametrize("kind", KINDS)
def test_large_whole_numbers_stay_apart_beside_an_odd_one(kind, other):
    labels = KINDS[kind](odd(IDS, other))
    np.testing.assert_array_equal(step(labels, classes=[BIG, BIG + 1]), WITHOUT)


@pytest.mark.parametrize("dtype", ["Int64", "UInt64", "int64[pyarrow]"])
def test_nullable_types_keep_large_whole_numbers_apart(dtype):
    for labels in (pd.Series(odd(IDS, None), dtype=dtype), pd.array(odd(IDS, None), dtype=dtype)):
        codes = codes_of(as_target(labels), [BIG, BIG + 1])
        np.testing.assert_array_equal(codes, odd(LABELS, -1))
    frame = pd.DataFrame({"y": pd.Series(IDS, dtype=dtype)})
    with pytest.warns(UserWarning, match="column-vector"):
        codes = codes_of(as_target(frame), [BIG, BIG + 1])
    np.testing.assert_array_equal(codes, LABELS)


def test_categories_of_a_list_stay_what_they_are():
    rows = [[label, 0.5] for label in odd(IDS, None)]
    codes = codes_of(as_table(rows, ["x0"])["x0"], [BIG, BIG + 1])
    np.testing.assert_array_equal(codes, odd(LABELS, -1))


@pytest.mark.parametrize("name", ["text", "None", "complex"])
def test_labels_that_are_public_are_of_one_type(name):
    model = PrivateClassifier(classes="public", bounds=(-1, 1), **FAST)
    if name == "None":  # a missing label is no label
        assert model.fit(X, odd(LABELS, None)).classes_.tolist() == [0, 1]
    else:
        with pytest.raises(ValueError, match="labels of one type"):
            model.fit(X, odd(LABELS, ODD[name]))


SECRET = 4242.4242


@pytest.mark.parametrize(
    "call",
    [
        lambda: as_table(np.array([[SECRET, 1j]])),
        lambda: as_table(np.array([SECRET, 1.0])),
        lambda: as_table([SECRET, 1.0]),
        lambda: as_table([[SECRET, 1.0], [1.0]]),
        lambda: as_table(pa.table({"a": [SECRET]})),
        lambda: as_target(np.array([SECRET, 1j])),
        lambda: as_target(np.array([[SECRET, 1.0]])),
        lambda: as_target(pa.array([SECRET, None])),
        lambda: as_target({SECRET: 1}),
        lambda: row_weights(pd.Series([SECRET, 1j]), 2),
        lambda: row_weights([SECRET], 2),
    ],
)
def test_errors_of_types_and_shapes_show_no_value(call):
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    assert "4242" not in str(caught.value)


def test_a_fit_that_is_interrupted_changes_nothing(monkeypatch):
    table = pd.DataFrame(X, columns=["a", "b"])
    options = FAST | {"bounds": (-1, 1), "epochs": 1}
    regressor = PrivateRegressor(epsilon=2.0, target_bounds="private", **options).fit(table, X[:, 0])
    classifier = PrivateClassifier(classes="public", **options).fit(table, LABELS)
    before = [dict(vars(model)) for model in (regressor, classifier)]

    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(base, "make_private", stopped)
    other = pd.DataFrame(1000 * X[:, :1], columns=["c"])
    with pytest.raises(KeyboardInterrupt):
        regressor.fit(other, 1000 * X[:, 0])
    with pytest.raises(KeyboardInterrupt):
        classifier.fit(other, [label + 5 for label in LABELS])
    classifier.count_unusable(other, [label + 5 for label in LABELS])
    for model, attributes in zip((regressor, classifier), before, strict=True):
        assert vars(model).keys() == attributes.keys()
        assert all(vars(model)[name] is value for name, value in attributes.items())


def parquet(path, **columns):
    pq.write_table(pa.table(columns), path)
    return str(path)


def test_a_missing_whole_number_in_parquet_changes_no_other_row(tmp_path):
    a, word = pa.array(X[:, 0]), pa.array(["u", "v"] * (N // 2))
    for values in (IDS, odd(IDS, None)):
        path = parquet(tmp_path / "t.parquet", a=a, word=word, id=pa.array(values, pa.int64()))
        data = load_table(path, target="id", classes=[BIG, BIG + 1], bounds={"a": (-1, 1)}, test_file=path)
        np.testing.assert_array_equal(others(data.train.tensors[1]), others(LABELS))
        data = load_table(
            path, target="word", classes=["u", "v"], categories={"id": [BIG, BIG + 1]}, test_file=path
        )
        np.testing.assert_array_equal(others(data.train.tensors[0][:, :2].argmax(1)), others(LABELS))


def test_a_text_in_parquet_that_is_no_utf_8_changes_no_other_row(tmp_path):
    ends, letters = pa.py_buffer(np.array([0, 1, 2], np.int32)), pa.py_buffer(b"a\xff")
    path = parquet(tmp_path / "t.parquet", word=pa.Array.from_buffers(pa.string(), 2, [None, ends, letters]))
    assert read_table(path, ["word"])["word"].tolist() == ["a", "\ufffd"]
    path = parquet(tmp_path / "t.parquet", day=pa.array([0, 2**30], pa.date32()))
    with pytest.raises(ValueError, match=r"of .*t\.parquet with values that pandas can hold\.$"):
        read_table(path, ["day"])


def test_a_byte_in_csv_that_is_no_utf_8_changes_no_other_row(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b"word,y\nu,0\n\xff,1\nv,1\n")
    assert column_names(path) == ["word", "y"]
    assert read_table(path, ["word", "y"]).to_numpy().tolist() == [["u", "0"], ["\ufffd", "1"], ["v", "1"]]


@pytest.mark.parametrize("row", [0, 2])
@pytest.mark.parametrize("end", [",", ",5", ",5,6"])
def test_a_longer_row_of_csv_changes_no_other_row(tmp_path, row, end):
    rows = ["1,2,3", "4,5,6", "7,8,9"]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["a,b,y", *odd(rows, rows[row] + end, row)]) + "\n")
    for columns in (["a", "b", "y"], ["a", "y"], ["y"]):
        expected = [["a", "b", "y"].index(name) for name in columns]
        found = read_table(path, columns).to_numpy().tolist()
        assert found == [[line.split(",")[place] for place in expected] for line in rows]


def test_an_open_quote_is_an_error_that_shows_no_row(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('a,y\n1,2\n"3,4\n5,6\n')
    with pytest.raises(ValueError, match="whose quotes are all closed") as caught:
        read_table(path, ["a"])
    assert not set("123456") & set(str(caught.value).replace(str(path), ""))
    assert caught.value.__suppress_context__
