"""Terms, masks, samplers and data sets that change after a run was made, or between two runs."""

from contextlib import suppress

import numpy as np
import pytest
import torch
from dp_accounting import NeighboringRelation
from torch.utils.data import TensorDataset

from adamas import DataLedger
from adamas.graphs import NodeTerms
from tests.support import distributed_ranks
from tests.support.node_runs import (
    finished,
    graph_with,
    node_run,
    node_run_of_rank,
    noisy_graph,
    terms_of,
)

REMOVE = NeighboringRelation.REPLACE_SPECIAL


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        ({"max_degree": 30}, "max_degree", 1),
        ({"hops": 2}, "hops", 1),
        ({"relation": "replace"}, "relation", "remove"),
        ({"max_in_degree": 25}, "max_in_degree", None),
    ],
)
def test_what_terms_were_made_with_does_not_change(options, name, value):
    terms = terms_of(**options)
    before = terms.terms_per_node, terms.protects
    with suppress(AttributeError):
        setattr(terms, name, value)
    assert (terms.terms_per_node, terms.protects) == before
    assert node_run(terms).loader.sampler.terms == before[0]


def test_terms_read_what_their_class_reads():
    terms, more = terms_of(max_degree=1, width=30), terms_of(max_degree=30)
    with suppress(AttributeError):
        terms.rows = more.rows
    with suppress(TypeError):
        run = node_run(terms)
        assert torch.equal(run.loader.fetch(np.arange(9))[1], terms_of(max_degree=1, width=30)[:9][1])


def test_the_way_of_sampling_does_not_change():
    sampler = node_run(sampling="fixed-size").loader.sampler
    before = sampler.event({0: [10.0]})
    with suppress(AttributeError):
        sampler.sampling = "poisson"
    assert sampler.event({0: [10.0]}) == before


@pytest.mark.parametrize("first", ["terms", "plain examples"])
def test_another_data_set_in_the_loader_of_a_run_is_refused(first):
    terms = terms_of(max_degree=1)
    graph = terms.graph
    nodes = graph.train_nodes
    alone = graph.features[nodes][:, None], torch.ones(len(nodes), 1).bool(), graph.labels[nodes]
    run = node_run(terms if first == "terms" else TensorDataset(*alone))

    def train_on_others():
        run.loader.dataset = terms_of(max_degree=30)
        list(run)

    with pytest.raises((AttributeError, RuntimeError), match="data"):
        train_on_others()
    assert run.steps_done == 0


def test_a_mask_that_changes_later_does_not_make_training_nodes_public():
    mask = noisy_graph().train.clone()
    terms = NodeTerms(graph_with(train=mask), max_degree=3)
    nodes = terms.nodes.clone()
    mask.zero_()
    with pytest.raises(ValueError, match="training nodes"):
        terms.evaluation(nodes)


def test_releases_that_only_a_journal_knows_keep_their_price(tmp_path):
    # The file is written before the first step, and the six releases after it are in the journal alone.
    files = {"checkpoint": tmp_path / "run.safetensors", "checkpoint_every": 8}
    died = node_run(terms_of(max_degree=30), accountant="rdp", **files)
    for step in died:
        if step.number == 6:
            break
    with suppress(ValueError):
        resumed = node_run(terms_of(max_degree=1), accountant="rdp", resume=True, **files)
        assert resumed.epsilon() >= died.epsilon()


@pytest.mark.slow
def test_a_data_ledger_does_not_forget_releases_on_other_terms(tmp_path):
    ledger = DataLedger.create(tmp_path / "ledger.json", epsilon=100.0, delta=1e-3, relation=REMOVE)
    files = {"checkpoint": tmp_path / "run.safetensors", "checkpoint_every": 8, "data_ledger": ledger}
    died = node_run(terms_of(max_degree=30), **files)
    for step in died:
        if step.number == 6:
            break
    spent = died.ledger.epsilon(1e-3)
    with suppress(ValueError):
        finished(node_run(terms_of(max_degree=1), resume=True, **files))
    assert ledger.epsilon() >= spent


# Two releases on one batch make one event only if a node changes the same terms in both.
@pytest.mark.parametrize(
    ("saved", "resumed"),
    [
        ({"seed": 1}, {"seed": 2}),
        ({"edges": "uniform"}, {"edges": "published"}),
        ({"inductive": True}, {"inductive": False}),
        ({"max_degree": 6}, {"max_degree": 2, "hops": 2}),
        ({"max_degree": 26}, {"max_degree": 1, "max_in_degree": 25}),
    ],
)
def test_a_checkpoint_continues_with_the_same_terms_only(saved, resumed, tmp_path):
    files = {"checkpoint": tmp_path / "run.safetensors", "checkpoint_every": 5}
    for step in node_run(terms_of(**saved), accountant="rdp", **files):
        if step.number == 7:
            break
    with pytest.raises(ValueError, match="Expected a state with"):
        node_run(terms_of(**resumed), accountant="rdp", resume=True, **files)


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    """Starts two ranks."""
    made = distributed_ranks.Pool(tmp_path_factory.mktemp("ranks"))
    yield made
    made.close()


@pytest.mark.subprocess
@pytest.mark.parametrize(
    "odd", [{"max_degree": 30}, {"seed": 1}, {"inductive": False}, {"relation": "replace"}]
)
def test_ranks_with_other_terms_are_refused(pool, odd):
    assert pool(node_run_of_rank, {}) == [4, 4]
    for failure in pool(node_run_of_rank, odd):
        assert isinstance(failure, distributed_ranks.Failure)
        assert failure.kind == "DistributedError"
