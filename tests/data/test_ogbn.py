"""ogbn-arxiv, on a small folder of the same form."""

import gzip
import sys

import pytest
import torch

from adamas import data
from adamas.data.local import find
from adamas.data.ogbn import Counts, read_ogbn

pytestmark = pytest.mark.usefixtures("alone")

# Paper 0 cites 1 and 2; 1 and 2 cite each other; 3 cites 0, twice; 4 cites itself.
CONTENTS = {
    "raw/edge.csv": "0,1\n0,2\n1,2\n2,1\n3,0\n3,0\n4,4\n",
    "raw/node-feat.csv": "0.5,-1\n1,1e-3\n2,0\n3,0\n4,-0.25\n",
    "raw/node-label.csv": "0\n2\n1\n0\n2\n",
    "raw/num-node-list.csv": "5\n",
    "raw/num-edge-list.csv": "7\n",
    "split/time/train.csv": "3\n0\n",
    "split/time/valid.csv": "1\n",
    "split/time/test.csv": "2\n4\n",
}
COUNTS = Counts(nodes=5, features=2, classes=3, edges=7, train=2, validation=1, test=2)


@pytest.fixture(params=["", ".gz"])
def folder(request, tmp_path, monkeypatch):
    """The folder of five papers, with plain or packed files."""
    monkeypatch.setattr(sys.modules["adamas.data.ogbn"], "_ARXIV", COUNTS)
    folder = tmp_path / "data" / "ogbn_arxiv"
    for name, content in CONTENTS.items():
        write(folder / f"{name}{request.param}", content)
    return folder


def write(file, content):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(gzip.compress(content.encode()) if file.suffix == ".gz" else content.encode())


def test_the_graph_is_read(folder):
    graph = data.load("ogbn-arxiv")
    assert (graph.name, graph.input_shape, graph.classes) == ("ogbn-arxiv", (2,), 3)
    assert graph.features.dtype == torch.float32
    torch.testing.assert_close(
        graph.features, torch.tensor([[0.5, -1], [1, 1e-3], [2, 0], [3, 0], [4, -0.25]])
    )
    assert graph.labels.tolist() == [0, 2, 1, 0, 2]
    assert graph.edges.T.tolist() == [[0, 1], [0, 2], [0, 3], [1, 0], [1, 2], [2, 0], [2, 1], [3, 0]]
    assert graph.train_nodes.tolist() == [0, 3]
    assert graph.validation_nodes.tolist() == [1]
    assert graph.test_nodes.tolist() == [2, 4]
    assert graph.test.tensors[1].tolist() == [1, 2]
    assert data.load("ogbn-arxiv/validation").test_nodes.tolist() == [1]


def test_edges_may_keep_the_direction_of_the_citation(folder):
    graph = data.load("ogbn-arxiv", directed=True)
    assert graph.edges.T.tolist() == [[0, 1], [0, 2], [1, 2], [2, 1], [3, 0]]


def test_another_graph_in_the_folder_is_noticed(folder):
    other = COUNTS._replace(nodes=6)
    with pytest.raises(RuntimeError, match=r"Expected ogbn-arxiv in .*nodes=6.*found .*nodes=5"):
        read_ogbn(folder, "ogbn-arxiv", "time", expected=other)
    assert len(read_ogbn(folder, "five", "time").labels) == 5


def test_without_the_folder_the_error_says_where_to_put_it():
    with pytest.raises(RuntimeError, match=r"folder ogbn_arxiv.* into \./data .*ADAMAS_DATA.*root='data'"):
        data.load("ogbn-arxiv")


def test_files_that_are_missing_are_named(folder):
    for name in ("raw/edge.csv", "split/time/valid.csv"):
        find(folder, name).unlink()
    with pytest.raises(RuntimeError, match=r"lacks raw/edge\.csv, split/time/valid\.csv\. Complete it\.$"):
        data.load("ogbn-arxiv")
    with pytest.raises(RuntimeError, match=r"ogbn_arxiv has no file raw/edge\.csv\. Download"):
        read_ogbn(folder, "five", "time")


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("raw/edge.csv", "0,1\n" * 2, r"raw/edge\.csv in .* has 2 lines, but .* says 7"),
        ("raw/edge.csv", "0,5\n" * 7, r"raw/edge\.csv .* from 0 to 5.* 5 nodes"),
        ("raw/edge.csv", "0\n" * 7, r"Expected 2 numbers on each line of .*edge\.csv.*shape \(7, 1\)"),
        ("raw/edge.csv", "0,one\n" * 7, r"edge\.csv.* is damaged or no table of numbers: .*one"),
        ("raw/node-feat.csv", "1,2\n3\n", r"node-feat\.csv.* is damaged or no table of numbers"),
        ("raw/node-feat.csv", "1,2\n" * 4, r"raw/node-feat\.csv in .* has 4 lines, but .* says 5"),
        ("raw/node-feat.csv", "1,nan\n" * 5, r"raw/node-feat\.csv in .* not finite"),
        ("raw/node-label.csv", "0\n" * 6, r"raw/node-label\.csv in .* has 6 lines, but .* says 5"),
        ("raw/node-label.csv", "-1\n" * 5, r"raw/node-label\.csv in .* label below 0"),
        ("split/time/test.csv", "-1\n", r"split/time/test\.csv .* from -1 to -1"),
        ("split/time/test.csv", "3\n", r"split/time in .* name a node twice"),
        ("split/time/train.csv", "", r"numbers on each line of .*train\.csv.*shape \(0, 1\)"),
    ],
)
def test_a_damaged_file_is_named(folder, name, content, error):
    write(find(folder, name), content)
    with pytest.raises(RuntimeError, match=error):
        data.load("ogbn-arxiv")


def test_a_packed_file_that_is_cut_short_is_named(folder):
    find(folder, "raw/edge.csv").unlink()
    packed = gzip.compress(CONTENTS["raw/edge.csv"].encode())
    (folder / "raw" / "edge.csv.gz").write_bytes(packed[:-9])
    with pytest.raises(RuntimeError, match=r"edge\.csv\.gz is damaged.*Download it again"):
        data.load("ogbn-arxiv")
