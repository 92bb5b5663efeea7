"""Tables in files: read by a schema that is given, whatever a row holds."""

import json

import numpy as np
import pytest
import torch

pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from adamas.tabular.files import column_names, column_types, load_table, read_table  # noqa: E402
from adamas.tabular.schema_files import read_schema, skeleton  # noqa: E402
from tests.support.patients import BOUNDS, CATEGORIES, patients  # noqa: E402

pytestmark = pytest.mark.slow  # importing pandas and scikit-learn takes seconds

GIVEN = {"target": "outcome", "bounds": BOUNDS, "categories": CATEGORIES}
N = 50


@pytest.fixture(params=[".csv", ".parquet"])
def file(request, tmp_path):
    """Writes a table, and returns its path."""
    table, labels, target = patients(N)
    path = tmp_path / f"patients{request.param}"
    written = table.assign(outcome=labels, score=target)
    written.to_csv(path, index=False) if path.suffix == ".csv" else written.to_parquet(path)
    return path


def appended(path, line):
    """Writes a CSV file with another line at its end."""
    other = path.with_name("longer.csv")
    other.write_text(path.read_text() + line + "\n")
    return other


def test_a_file_becomes_a_data_set(file):
    classes = [0, 1]
    data = load_table(str(file), classes=classes, **GIVEN)
    assert (len(data.train), len(data.test), data.input_shape, data.classes) == (40, 10, (8,), 2)
    table, labels, _ = patients(N)
    joined = torch.cat([data.train.tensors[0], data.test.tensors[0]])
    ages = np.sort(((table["age"] - 60) / 60).to_numpy(dtype=np.float32))
    np.testing.assert_allclose(np.sort(joined[:, 0].numpy()), ages, atol=1e-6)
    assert sorted(torch.cat([data.train.tensors[1], data.test.tensors[1]]).tolist()) == sorted(labels)


def test_a_number_to_predict_is_scaled(file):
    data = load_table(str(file), target_bounds=(0, 10), **(GIVEN | {"target": "score"}))
    assert (data.classes, data.target_bounds) == (1, (0.0, 10.0))
    _, _, target = patients(N)
    joined = torch.cat([data.train.tensors[1], data.test.tensors[1]])
    np.testing.assert_allclose(np.sort(joined.numpy()), np.sort(target / 5 - 1), atol=1e-6)


def test_places_alone_decide_which_rows_are_test_rows(file):
    first = load_table(str(file), classes=[0, 1], **GIVEN)
    table = read_table(file, column_names(file))
    table["age"] = "33"
    other = file.with_name("other.csv")
    table.to_csv(other, index=False)
    second = load_table(str(other), classes=[0, 1], **GIVEN)
    assert torch.equal(first.train.tensors[0][:, 3:], second.train.tensors[0][:, 3:])
    assert torch.equal(first.test.tensors[1], second.test.tensors[1])


@pytest.mark.parametrize("row", ["x,y,z,0,1", ",,,1,", "1e999,-1e999,D,1,1", "30,120,A,2,1", "30,120,A,?,"])
def test_a_row_of_a_csv_file_changes_no_other_row(tmp_path, row):
    table, labels, target = patients(N)
    path = tmp_path / "patients.csv"
    table.assign(outcome=labels, score=target).to_csv(path, index=False)
    options = GIVEN | {"classes": [0, 1], "test_file": str(path)}
    short, long = load_table(str(path), **options), load_table(str(appended(path, row)), **options)
    assert (long.input_shape, long.classes) == (short.input_shape, short.classes)
    for a, b in zip(short.train.tensors, long.train.tensors, strict=True):
        assert torch.equal(a, b[:N])
        assert len(b) == N + 1
    known = row.split(",")[3] in ("0", "1")
    assert bool(long.train.tensors[0][N].isfinite().all()) == known


def test_rows_without_a_known_label_are_no_test_rows(tmp_path):
    table, labels, _ = patients(N)
    path = tmp_path / "patients.csv"
    table.assign(outcome=np.where(np.arange(N) < 30, labels, 7)).to_csv(path, index=False)
    data = load_table(str(path), classes=[0, 1], test_file=str(path), **GIVEN)
    assert (len(data.test), data.left_out) == (30, 20)
    assert int(data.train.tensors[0].isnan().any(1).sum()) == 20
    assert data.train.tensors[0].isnan().all(1).sum() == 20


@pytest.mark.parametrize(("target", "classes"), [("outcome", ["0", "1"]), ("ward", [0, 1])])
def test_classes_of_another_type_than_the_file_says_are_refused(file, target, classes):
    options = GIVEN | {"target": target, "categories": None, "classes": classes}
    if file.suffix == ".csv":  # texts, whatever they are
        assert load_table(str(file), **options).classes == 2
        return
    with pytest.raises(TypeError, match="no row would have a known label"):
        load_table(str(file), **options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"categories": {"code": ["0", "1"]}},
            r"categories \['0', '1'\] of the type of 'code', which is int64",
        ),
        ({"categories": {"word": [0, 1]}}, r"categories \[0, 1\] of the type of 'word'"),
        ({"categories": {"kind": [0, 1]}}, r"categories \[0, 1\] of the type of 'kind'"),
        ({"bounds": {"day": (0, 1)}}, r"'day', which has bounds, to hold numbers, got type timestamp"),
    ],
)
def test_a_column_of_parquet_that_cannot_hold_what_is_said_of_it_is_refused(tmp_path, change, message):
    def written(name, **changed):
        columns = {"code": [0, 1] * 5, "word": ["a", "b"] * 5, "kind": pd.Categorical(["a", "b"] * 5)}
        columns |= {"day": pd.date_range("2020", periods=10), "outcome": [0, 1] * 5}
        pd.DataFrame(columns | changed).to_parquet(tmp_path / name)
        return str(tmp_path / name)

    path = written("t.parquet")
    with pytest.raises(TypeError, match=message):
        load_table(path, target="outcome", classes=[0, 1], **change)
    other = written("o.parquet", code=["0", "1"] * 5)
    given = {"target": "outcome", "classes": [0, 1], "categories": {"code": [0, 1]}}
    assert len(load_table(path, **given).test) == 2
    with pytest.raises(TypeError, match="of the type of 'code'"):
        load_table(path, test_file=other, **given)


def test_spaces_around_values_of_csv_do_not_count(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("ward,outcome\nA, yes\n B ,no\n")
    given = {"target": "outcome", "classes": ["no", " yes"], "categories": {"ward": [" A", "B "]}}
    read = load_table(str(path), **given, test_file=str(path))
    assert read.train.tensors[0].tolist() == [[1, 0, 0], [0, 1, 0]]
    assert read.train.tensors[1].tolist() == [1, 0]


def test_a_name_of_two_columns_is_refused_if_it_is_read(file):
    table = read_table(file, ["age", "pressure", "outcome"]).set_axis(
        ["age", "age", "outcome"], axis="columns"
    )
    if file.suffix == ".csv":
        table.to_csv(file, index=False)
    else:
        columns = [pa.array(table.iloc[:, place]) for place in range(3)]
        pq.write_table(pa.table(columns, names=["age", "age", "outcome"]), file)
    assert len(read_table(file, ["outcome"])) == N
    with pytest.raises(ValueError, match="to have one column 'age'"):
        read_table(file, ["age"])


def test_texts_that_pandas_would_read_as_missing_are_categories(tmp_path):
    path = tmp_path / "codes.csv"
    path.write_text("code, outcome\nNA, 0\nnull , 1\n,1\n")
    read = load_table(
        str(path),
        target="outcome",
        classes="public",
        categories={"code": ["NA", "null"]},
        test_file=str(path),
    )
    assert read.train.tensors[0].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert read.train.tensors[1].tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, "either classes of 'outcome'"),
        ({"classes": [0, 1], "target_bounds": (0, 1)}, "either classes"),
        ({"classes": [0]}, "two or more different classes"),
        ({"classes": "all"}, "'public'"),
        ({"classes": [0, 1], "bounds": {"agee": (0, 1)}}, "got 'agee'"),
        ({"classes": [0, 1], "bounds": {"outcome": (0, 1)}}, "without bounds and categories of its own"),
        ({"classes": [0, 1], "bounds": {"ward": (0, 1)}}, "in both"),
        ({"classes": [0, 1], "bounds": {}, "categories": {}}, "nothing is read off the data"),
        ({"classes": [0, 1], "bounds": {"age": (1, 0)}}, "low < high"),
        ({"classes": [0, 1], "test_fraction": 0.001}, "test_fraction=0.001 .* 0 of 50"),
        ({"classes": [0, 1], "test_fraction": 1.5}, "test_fraction=1.5 .* 75 of 50"),
    ],
)
def test_what_is_missing_or_wrong_is_named(file, change, message):
    with pytest.raises(ValueError, match=message):
        load_table(str(file), **(GIVEN | change))


def test_a_schema_file_is_toml_or_json(tmp_path):
    options = {"target": "outcome", "classes": ["0", "1"], "bounds": {"age": [0, 120]}}
    (tmp_path / "a.json").write_text(json.dumps(options))
    (tmp_path / "a.toml").write_text('target = "outcome"\nclasses = ["0", "1"]\n[bounds]\nage = [0, 120]\n')
    assert read_schema(tmp_path / "a.json") == read_schema(tmp_path / "a.toml") == options
    (tmp_path / "b.toml").write_text("targett = 1")
    with pytest.raises(ValueError, match=r"schema of target.*got \['targett'\]"):
        read_schema(tmp_path / "b.toml")
    (tmp_path / "c.toml").write_text("target = ")
    with pytest.raises(ValueError, match="to hold TOML"):
        read_schema(tmp_path / "c.toml")


def test_a_skeleton_depends_on_no_value(file, tmp_path):
    text = skeleton(file)
    other = tmp_path / f"empty{file.suffix}"
    empty = patients(N)[0].assign(outcome=0, score=0.5).head(0 if file.suffix == ".csv" else 1)
    empty.to_csv(other, index=False) if other.suffix == ".csv" else empty.to_parquet(other)
    assert skeleton(other).splitlines()[1:] == text.splitlines()[1:]
    path = tmp_path / "a.toml"
    path.write_text(
        text.replace('# "age" = [0, 1]', '"age" = [0, 120]').replace('target = ""', 'target = "a"')
    )
    assert read_schema(path)["bounds"] == {"age": [0, 120]}
    if file.suffix == ".parquet":
        assert column_types(file)["ward"] == "text"
        assert '# "ward" = [0, 1]' not in text


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_file_that_is_no_table_is_named(tmp_path, suffix):
    path = tmp_path / f"broken{suffix}"
    path.write_text("" if suffix == ".csv" else "age,outcome")
    for read in (column_names, skeleton, lambda file: load_table(str(file), classes=[0, 1], **GIVEN)):
        with pytest.raises(ValueError, match=rf"broken{suffix} to be"):
            read(path)
