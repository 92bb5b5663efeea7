"""Runs on terms of a graph: rules, engines, noise, checkpoints, ledgers, checks and audits take them."""

import math

import pytest
import torch
from dp_accounting import NeighboringRelation

import adamas
from adamas import DataLedger, rules
from adamas.accounting.terms import SampledTermsDpEvent
from adamas.audit import audit
from adamas.check import check
from adamas.engines import ENGINES
from adamas.graphs import NodeTerms
from adamas.loading import Loader
from adamas.rules import RULES
from tests.support.node_runs import node_run, noisy_graph


def weights(run):
    return torch.nn.utils.parameters_to_vector(run.model.parameters()).detach()


@pytest.mark.parametrize("rule", ["sgd", "adam", "adam-bc", "adamw-bc", "macadam", "micro-adam"])
def test_rules_train_on_terms(rule):
    run = node_run(rule=RULES[rule])
    before = weights(run).clone()
    list(run)
    assert run.engine == "bookkeeping"
    assert not torch.equal(weights(run), before)
    assert weights(run).isfinite().all()


@pytest.mark.parametrize("engine", ENGINES)
def test_engines_agree(engine):
    run, other = node_run(rule=rules.SGD), node_run(rule=rules.SGD, engine=engine)
    list(run), list(other)
    torch.testing.assert_close(weights(run), weights(other))


@pytest.mark.parametrize("options", [{"micro_batch_size": 7}, {"num_workers": 1}])
def test_how_batches_are_loaded_does_not_change_the_result(options):
    run, other = node_run(), node_run(**options)
    list(run), list(other)
    torch.testing.assert_close(weights(run), weights(other), rtol=1e-5, atol=1e-6)


def test_batches_are_those_of_single_examples():
    terms = NodeTerms(noisy_graph(), max_degree=3, hops=2)
    at_once = Loader(terms, terms.sampler("poisson", 40, 0)).fetch(torch.arange(5).numpy())
    one_by_one = [torch.stack(values) for values in zip(*(terms[i] for i in range(5)), strict=True)]
    assert all(torch.equal(a, b) for a, b in zip(at_once, one_by_one, strict=True))


@pytest.mark.slow
def test_a_run_learns_from_neighbors_within_its_budget():
    graph = noisy_graph(2000, 3000)
    terms = NodeTerms(graph, max_degree=2, width=20)
    run = node_run(terms, steps=150, batch_size=400, epsilon=20.0, noise_multiplier=None)
    list(run)
    assert run.epsilon() <= 20.0
    others = terms.evaluation(~graph.train, "all")
    features, mask, labels = others[:]
    right = (run.model(features, mask).argmax(1) == labels).float().mean()
    alone = terms.evaluation(~graph.train, "none")[:]
    assert right > 0.7 > (run.model(*alone[:2]).argmax(1) == labels).float().mean()


@pytest.mark.parametrize("sampling", ["poisson", "fixed-size"])
def test_the_ledger_has_an_event_of_terms_for_each_step(sampling):
    run = node_run(sampling=sampling)
    list(run)
    n = len(run.loader.dataset)
    assert run.ledger.relation == NeighboringRelation.REPLACE_SPECIAL
    assert run.ledger.entries == [(SampledTermsDpEvent(n, 40, 4, 10.0, sampling), 12)]
    assert 0 < run.epsilon() < math.inf


def test_batches_of_a_fixed_size_are_of_that_size_and_differ():
    sampler = node_run(sampling="fixed-size").loader.sampler
    draws = [sampler.indices(step).indices for step in range(50)]
    assert all(len(set(draw.tolist())) == 40 for draw in draws)
    assert len({tuple(draw.tolist()) for draw in draws}) == 50


def test_the_statement_speaks_of_a_node():
    statement = node_run().privacy_statement()
    assert "removing one node: its features, its label and its list of edges" in statement
    replaced = node_run(NodeTerms(noisy_graph(), max_degree=3, relation="replace"))
    assert "replacing one node" in replaced.privacy_statement()


@pytest.mark.slow
def test_calibration_keeps_the_budget_and_wastes_none():
    run = node_run(epsilon=4.0, noise_multiplier=None)
    list(run)
    assert 3.98 < run.epsilon() <= 4.0


def test_the_papers_multiplier_counts_in_units_of_all_terms():
    terms = NodeTerms(noisy_graph(), max_degree=3)
    z = terms.noise_multiplier(2.0)
    run = node_run(terms, noise_multiplier=z, accountant="rdp", sampling="fixed-size")
    assert run.noise_multiplier == 2 * 4 * 2.0


def test_a_stronger_relation_costs_more():
    weak, strong, strongest = (
        node_run(NodeTerms(noisy_graph(), max_degree=3, **options))
        for options in ({}, {"relation": "replace"}, {"max_in_degree": 25})
    )
    for run in (weak, strong, strongest):
        list(run)
    assert weak.epsilon() < strong.epsilon() < strongest.epsilon()


def test_a_run_resumes_bit_equal(tmp_path):
    whole = node_run(steps=12)
    list(whole)
    files = {"checkpoint": tmp_path / "run.safetensors", "checkpoint_every": 5}
    first = node_run(steps=12, **files)
    for step in first:
        if step.number == 7:
            break
    second = node_run(steps=12, resume=True, **files)
    list(second)
    assert torch.equal(weights(second), weights(whole))
    assert second.epsilon() == whole.epsilon()


def test_a_data_ledger_pays_for_nodes(tmp_path):
    ledger = DataLedger.create(
        tmp_path / "ledger.json", epsilon=50.0, delta=1e-3, relation=NeighboringRelation.REPLACE_SPECIAL
    )
    run = node_run(data_ledger=ledger)
    list(run)
    run.close()
    assert ledger.epsilon() == pytest.approx(
        adamas.Ledger.of(run.ledger.entries, run.ledger.relation).epsilon(1e-3), rel=1e-6
    )


def test_secure_noise_works():
    run = node_run(noise="secure", seed=None)
    list(run)
    assert weights(run).isfinite().all()


def test_checks_plant_nodes_and_pass():
    rows = {row.name: row for row in check(node_run, examples=3, progress=False)}
    assert [row for row in rows.values() if row.verdict == "fail"] == []
    assert rows["planted nodes"].verdict == "pass"
    assert "accounted for 4" in rows["planted nodes"].seen


@pytest.mark.slow
def test_a_check_sees_a_node_that_changes_more_terms_than_it_says(monkeypatch):
    monkeypatch.setattr(NodeTerms, "terms_per_node", property(lambda terms: 2))
    rows = {row.name: row.verdict for row in check(node_run, examples=3, progress=False)}
    assert rows["planted nodes"] == "fail"


@pytest.mark.audits
def test_audits_plant_nodes(monkeypatch):
    # The bound holds with probability 0.95; the seed is fixed.
    terms = NodeTerms(noisy_graph(600), max_degree=3)

    def make_run():
        return node_run(terms, steps=40, batch_size=80, noise_multiplier=4.0)

    honest = audit(make_run, seed=0, runs=3, progress=False)
    assert 0 < honest.lower_bound < honest.claimed
    # The audit refutes the epsilon of whoever counts one of the four terms of a node.
    monkeypatch.setattr(NodeTerms, "terms_per_node", property(lambda terms: 1))
    naive = make_run()
    list(naive)
    assert naive.epsilon() < honest.lower_bound


@pytest.mark.parametrize("name", ["terms_per_node", "protects", "kept_edges", "graph", "published_terms"])
def test_what_the_guarantee_rests_on_cannot_be_set(name):
    terms = NodeTerms(noisy_graph(), max_degree=3)
    with pytest.raises(AttributeError):
        setattr(terms, name, 1)


@pytest.mark.parametrize("name", ["terms", "relation", "protects", "batch_size"])
def test_what_a_sampler_accounts_for_cannot_be_set(name):
    sampler = NodeTerms(noisy_graph(), max_degree=3).sampler("poisson", 40, 0)
    with pytest.raises(AttributeError):
        setattr(sampler, name, 1)


@pytest.mark.parametrize(
    ("options", "name"), [({"max_degree": 2}, "terms"), ({"max_degree": 3, "max_in_degree": 30}, "terms")]
)
def test_a_run_does_not_continue_with_terms_that_count_otherwise(options, name):
    state = node_run().state_dict()
    with pytest.raises(ValueError, match=f"a state with {name}="):
        node_run(NodeTerms(noisy_graph(), **options)).load_state_dict(state)
