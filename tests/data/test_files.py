"""Files of the data sets are read correctly, and damaged or malicious ones refused; on small files."""

import gzip
import hashlib
import os
import pickle
import struct
import sys

import numpy as np
import pytest
import torch

from adamas import data
from adamas.data.adult import read_records
from adamas.data.idx import FILES, idx
from adamas.data.local import local_folder, read_verified
from adamas.data.unpickle import read_pickle

cifar10 = sys.modules["adamas.data.cifar10"]  # adamas.data.cifar10 is the function of that name


pytestmark = pytest.mark.usefixtures("alone")


# --- IDX: MNIST and Fashion-MNIST -----------------------------------------------------------------------


def idx_bytes(values):
    return struct.pack(f">{1 + values.ndim}i", 0x0800 + values.ndim, *values.shape) + values.tobytes()


def test_an_idx_file_is_read():
    values = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    assert torch.equal(idx(idx_bytes(values), (2, 3, 4), "file"), torch.from_numpy(values))


@pytest.mark.parametrize("damage", [lambda raw: raw[:-1], lambda raw: raw + b"x", lambda raw: raw[:5]])
def test_an_idx_file_of_another_size_is_refused(damage):
    raw = idx_bytes(np.zeros((2, 3), dtype=np.uint8))
    with pytest.raises(RuntimeError, match=r"file is not an IDX file of shape \(2, 3\)"):
        idx(damage(raw), (2, 3), "file")
    with pytest.raises(RuntimeError, match="not an IDX file"):
        idx(raw, (3, 2), "file")


@pytest.fixture
def images(monkeypatch):
    """Makes the four files of MNIST with blank images, and adjusts the expected checksums."""
    contents = {}
    for prefix, count in (("train", 60_000), ("t10k", 10_000)):
        contents[f"{prefix}-images-idx3-ubyte"] = idx_bytes(np.zeros((count, 28, 28), dtype=np.uint8))
        labels = np.arange(count, dtype=np.uint32) % 10
        contents[f"{prefix}-labels-idx1-ubyte"] = idx_bytes(labels.astype(np.uint8))
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    for module in ("mnist", "fashion_mnist"):
        monkeypatch.setattr(sys.modules[f"adamas.data.{module}"], "_SHA256", digests)
    return contents


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "folder", "blank"),
    [("mnist", "MNIST/raw", -0.1307 / 0.3081), ("fashion-mnist", "FashionMNIST/raw", -0.2860 / 0.3530)],
)
@pytest.mark.parametrize("packed", [False, True])
def test_images_are_read_from_the_torchvision_folder(
    tmp_path, monkeypatch, images, name, folder, blank, packed
):
    raw = tmp_path / "mine" / folder
    raw.mkdir(parents=True)
    for file, content in images.items():
        if packed:
            (raw / f"{file}.gz").write_bytes(gzip.compress(content, compresslevel=1))
        else:
            (raw / file).write_bytes(content)
    monkeypatch.setenv("ADAMAS_DATA", str(tmp_path / "mine"))
    loaded = data.load(name)
    assert (len(loaded.train), len(loaded.test)) == (60_000, 10_000)
    assert loaded.train.tensors[0].shape == (60_000, 1, 28, 28)
    torch.testing.assert_close(loaded.test.tensors[0][0, 0, 0, 0].item(), blank)
    assert loaded.test.tensors[1][:3].tolist() == [0, 1, 2]


# --- the user's own folders -----------------------------------------------------------------------------


def test_the_folder_in_the_environment_takes_precedence_over_data(tmp_path, monkeypatch):
    assert local_folder("inside", ["a"]) is None
    for place in ("data", "mine"):
        (tmp_path / place / "inside").mkdir(parents=True)
        (tmp_path / place / "inside" / "a").touch()
    assert local_folder("inside", ["a"]).resolve() == tmp_path / "data" / "inside"
    monkeypatch.setenv("ADAMAS_DATA", str(tmp_path / "mine"))
    assert local_folder("inside", ["a"]) == tmp_path / "mine" / "inside"


def test_an_incomplete_folder_is_refused_with_the_missing_files(tmp_path):
    (tmp_path / "data" / "inside").mkdir(parents=True)
    (tmp_path / "data" / "inside" / "a").touch()
    with pytest.raises(RuntimeError, match=r"inside lacks b, c\. Complete it, or move it away"):
        local_folder("inside", ["a", "b", "c"])


def test_a_missing_folder_in_the_environment_is_refused(monkeypatch):
    monkeypatch.setenv("ADAMAS_DATA", "elsewhere")
    with pytest.raises(RuntimeError, match=r"ADAMAS_DATA names elsewhere.*unset it"):
        data.load("mnist")


def test_files_of_the_user_are_verified(tmp_path):
    digests = {"a": hashlib.sha256(b"right").hexdigest()}
    (tmp_path / "a").write_bytes(b"wrong")
    with pytest.raises(RuntimeError, match=r"a is damaged.*Delete it"):
        read_verified(tmp_path, digests)
    (tmp_path / "a").unlink()
    packed = gzip.compress(b"right")
    (tmp_path / "a.gz").write_bytes(packed)
    assert read_verified(tmp_path, digests) == {"a": b"right"}
    (tmp_path / "a.gz").write_bytes(packed[:-6])
    with pytest.raises(RuntimeError, match=r"a\.gz is damaged.*Delete it"):
        read_verified(tmp_path, digests)


def test_a_damaged_file_of_the_user_is_not_replaced_silently(tmp_path):
    raw = tmp_path / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name in FILES:
        (raw / name).write_bytes(b"not MNIST")
    with pytest.raises(RuntimeError, match="train-images-idx3-ubyte is damaged"):
        data.load("mnist")


# --- CIFAR-10 -------------------------------------------------------------------------------------------


def test_each_row_of_a_png_is_one_image(tmp_path):
    image = pytest.importorskip("PIL.Image")
    images = np.arange(2 * 3 * 32 * 32).astype(np.uint8).reshape(2, 3, 32, 32)
    rows = images.transpose(0, 2, 3, 1).reshape(2, 1024, 3)
    image.fromarray(rows).save(tmp_path / "rows.png")
    assert np.array_equal(cifar10.png_rows(tmp_path / "rows.png"), images)
    image.fromarray(rows[:, :100]).save(tmp_path / "short.png")
    with pytest.raises(RuntimeError, match=r"short\.png does not have rows of 1,024 pixels"):
        cifar10.png_rows(tmp_path / "short.png")


@pytest.fixture
def batches(tmp_path, monkeypatch):
    """Writes batches of ten images in the torchvision format, and adjusts the expected checksums."""
    folder = tmp_path / "data" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    labels = list(range(10))
    contents = {}
    for number, name in enumerate([*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]):
        contents[name] = np.full((10, 3072), number, dtype=np.uint8)
        (folder / name).write_bytes(pickle.dumps({"data": contents[name], "labels": labels}, protocol=2))
    train = np.concatenate([contents[f"data_batch_{n}"] for n in range(1, 6)])
    digests = {
        "train": cifar10.content_sha256(train, np.array(labels * 5, dtype=np.uint8)),
        "test": cifar10.content_sha256(contents["test_batch"], np.array(labels, dtype=np.uint8)),
    }
    monkeypatch.setattr(cifar10, "_CONTENT", digests)
    monkeypatch.setattr(cifar10, "_PER_CLASS", {"train": 5, "test": 1})
    return folder


def test_batches_are_read_from_the_torchvision_folder(batches):
    loaded = data.load("cifar10")
    assert loaded.train.tensors[0].shape == (50, 3, 32, 32)
    assert loaded.train.tensors[0].dtype == torch.float32
    assert loaded.test.tensors[1].tolist() == list(range(10))
    expected = [(5 / 255 - mean) / std for mean, std in zip(cifar10._MEAN, cifar10._STD, strict=True)]
    torch.testing.assert_close(loaded.test.tensors[0][3, :, 7, 7], torch.tensor(expected))


def test_a_changed_batch_is_refused(batches):
    changed = {"data": np.full((10, 3072), 99, dtype=np.uint8), "labels": list(range(10))}
    (batches / "data_batch_3").write_bytes(pickle.dumps(changed))
    with pytest.raises(RuntimeError, match=r"train images .* are damaged.*Delete the folder"):
        data.load("cifar10")


def test_a_wrong_number_of_images_is_refused(batches, monkeypatch):
    monkeypatch.setattr(cifar10, "_PER_CLASS", {"train": 6, "test": 1})
    with pytest.raises(RuntimeError, match="Expected 6 CIFAR-10 images of each"):
        data.load("cifar10")


@pytest.mark.parametrize("content", [{"data": 1, "labels": [1]}, {"labels": [1]}, [1, 2], None])
def test_a_pickle_that_is_not_a_batch_is_refused(batches, content):
    (batches / "data_batch_1").write_bytes(pickle.dumps(content))
    with pytest.raises(RuntimeError, match=r"data_batch_1 is no batch of CIFAR-10\. Delete it"):
        data.load("cifar10")


class Malicious:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("hidden", [False, True])
def test_a_malicious_pickle_does_not_run(tmp_path, batches, protocol, hidden):
    mark = tmp_path / "ran"
    for function, arguments in (
        (os.mkdir, [str(mark)]),
        (exec, [f"open({str(mark)!r}, 'w')"]),
        (getattr, [dict, "fromkeys"]),
    ):
        evil = Malicious(function, *arguments)
        content = {"data": np.array([evil], dtype=object), "labels": [0]} if hidden else evil
        raw = pickle.dumps(content, protocol=protocol)
        (batches / "data_batch_1").write_bytes(raw)
        with pytest.raises(RuntimeError, match=r"no pickle of plain arrays: it asks for .*\. Delete it"):
            data.load("cifar10")
    assert not mark.exists()


def test_a_truncated_pickle_raises_a_clear_error(tmp_path):
    (tmp_path / "cut").write_bytes(pickle.dumps(np.arange(100))[:-20])
    with pytest.raises(RuntimeError, match="cut is no pickle of plain arrays"):
        read_pickle(tmp_path / "cut")


# --- Adult ----------------------------------------------------------------------------------------------

RECORD = "40, Private, 1, Bachelors, 13, Divorced, ?, Wife, Black, Female, 99999, 0, 50, United-States, <=50K"


def test_records_become_numbers_and_categories():
    part = read_records(f"|a remark\n{RECORD}\n{RECORD.replace('<=50K', '>50K.')}\n\n", "file")
    features, labels = part.tensors
    assert labels.tolist() == [0, 1]
    assert features.shape == (2, 104)
    assert torch.equal(features[0], features[1])
    assert features[0, :5].tolist() == [0, 1, 1, 0, 1]  # age, education, gain, loss, hours
    assert features[0, 5:].sum() == 7  # eight columns, of which the occupation is unknown
    assert features[0, 5] == 1  # Private is the first work class


def test_features_of_a_record_do_not_depend_on_other_records():
    other = RECORD.replace("40,", "90,", 1).replace("Private", "State-gov")
    alone = read_records(RECORD, "file").tensors[0][0]
    assert torch.equal(read_records(f"{RECORD}\n{other}", "file").tensors[0][0], alone)


def test_a_record_that_does_not_fit_the_schema_is_named():
    with pytest.raises(RuntimeError, match=r"Record 2 of file has 3 values, not 15"):
        read_records(f"{RECORD}\n1, 2, 3", "file")
    with pytest.raises(RuntimeError, match=r"Unknown race 'Green' in record 1 of file"):
        read_records(RECORD.replace("Black", "Green"), "file")
    with pytest.raises(RuntimeError, match=r"Unknown income '70K' in record 1 of file"):
        read_records(RECORD.replace("<=50K", "70K"), "file")
