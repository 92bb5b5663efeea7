"""Models of graphs: their values against formulas on a whole graph, and what they refuse."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils.data import TensorDataset

import adamas
from adamas import Geometry, rules
from adamas.engines import ENGINES
from adamas.models import MODELS
from tests.reference.gcn import gcn as gcn_of_a_whole_graph
from tests.support.one_by_one import close
from tests.support.small_models import CLASSES, GRAPH_MODELS, count, loss, trees

NODES, FEATURES, HIDDEN, WIDTH = 9, 5, 6, 3

# Model, options, and hops of the trees that it takes.
KINDS = [
    ("gcn", {"hops": 1}, 1),
    ("gcn", {"hops": 2}, 2),
    ("gcn", {"hops": 2, "skip": "mean"}, 2),
    ("graphsage", {"hops": 1}, 1),
    ("graphsage", {"hops": 2}, 2),
    ("node-mlp", {}, 1),
    ("node-mlp", {"layers": 0}, 2),
]
every_kind = pytest.mark.parametrize(("name", "options", "hops"), KINDS)
both_hops = pytest.mark.parametrize("hops", [1, 2])


def build(name: str, **options: object) -> nn.Module:
    return MODELS[name]((FEATURES,), CLASSES, hidden=HIDDEN, **options).double()


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("gcn", {}, 173_695),
        ("gcn", {"hops": 2}, 173_695 + 255 * 256),
        ("node-mlp", {}, 173_695),
        ("node-mlp", {"layers": 0}, 173_695 - 255 * 256),
        ("graphsage", {}, 257 * 256 + 257 * 40),
        ("graphsage", {"hops": 2}, 257 * 256 + 513 * 256 + 257 * 40),
    ],
)
def test_parameters_on_ogbn_arxiv(name, options, expected):
    assert count(MODELS[name]((128,), 40, **options)) == expected


# --- values ---------------------------------------------------------------------------------------------


def small_graph() -> tuple[Tensor, Tensor]:
    """Features, and edges (v, u) such that node 0 hears from nobody, and no node from more than WIDTH."""
    edges = [(int(v), u) for u in range(1, NODES) for v in torch.randperm(NODES)[: 1 + u % WIDTH] if v != u]
    return torch.randn(NODES, FEATURES, dtype=torch.float64), torch.tensor(edges).T


def complete_trees(features: Tensor, edges: Tensor, hops: int) -> tuple[Tensor, Tensor]:
    """The computation tree of each node, with all its neighbours."""
    rows = [[node] for node in range(NODES)]
    for tree in rows:
        level = tree
        for _ in range(hops):
            below = []
            for node in level:
                senders = [] if node is None else edges[0, edges[1] == node].tolist()
                below += senders + [None] * (WIDTH - len(senders))
            tree += below
            level = below
    mask = torch.tensor([[node is not None for node in tree] for tree in rows])
    nodes = torch.tensor([[node or 0 for node in tree] for tree in rows])
    return features[nodes] * mask.unsqueeze(2), mask


@torch.no_grad()
@both_hops
@pytest.mark.parametrize("skip", ["own", "mean"])
def test_gcn_is_the_convolution_of_the_whole_graph(hops, skip):
    features, edges = small_graph()
    model = build("gcn", hops=hops, skip=skip)
    adjacency = np.zeros((NODES, NODES))
    adjacency[edges[1], edges[0]] = 1
    p = {name: value.numpy() for name, value in model.state_dict().items()}
    expected = gcn_of_a_whole_graph(p, features.numpy(), adjacency, hops, skip)
    close(model(*complete_trees(features, edges, hops)), torch.from_numpy(expected), 1e-12)
    assert np.abs(expected - gcn_of_a_whole_graph(p, features.numpy(), adjacency.T, hops, skip)).max() > 1e-3


@torch.no_grad()
@both_hops
def test_graphsage_is_that_of_pytorch_geometric(hops):
    geometric = pytest.importorskip("torch_geometric.nn")
    features, edges = small_graph()
    model = build("graphsage", hops=hops)
    states = features
    for layer in model.layers:
        theirs = geometric.SAGEConv(states.shape[1], HIDDEN, aggr="mean").double()
        theirs.load_state_dict(
            {
                "lin_l.weight": layer.neighbours.weight,
                "lin_l.bias": layer.own.bias,
                "lin_r.weight": layer.own.weight,
            }
        )
        states = theirs(states, edges).relu()
    close(model(*complete_trees(features, edges, hops)), model.classifier(states), 1e-12)


@torch.no_grad()
@pytest.mark.parametrize("hops", [0, 1, 2])
def test_node_mlp_is_gcn_without_neighbours(hops):
    alone, mlp = torch.randn(4, FEATURES, dtype=torch.float64), build("node-mlp", layers=hops)
    close(mlp(alone), mlp(*trees_of(alone)), 0)
    if hops:
        model = build("gcn", hops=hops)
        model.load_state_dict(mlp.state_dict())
        close(model(*trees_of(alone)), mlp(alone), 1e-12)


def trees_of(nodes: Tensor) -> tuple[Tensor, Tensor]:
    """Trees of three rows, which fit one hop of width 2 and two hops of width 1, without neighbours."""
    features = torch.zeros(len(nodes), 3, nodes.shape[1], dtype=nodes.dtype)
    features[:, 0] = nodes
    return features, torch.tensor([[True, False, False]]).expand(len(nodes), 3)


@torch.no_grad()
def test_graphsage_takes_0_as_the_mean_over_no_neighbours():
    model, nodes = build("graphsage"), torch.randn(4, FEATURES, dtype=torch.float64)
    close(model(*trees_of(nodes)), model.classifier(model.layers[0].own(nodes).relu()), 1e-12)


@torch.no_grad()
@every_kind
def test_rows_without_a_node_change_nothing(name, options, hops):
    model = build(name, **options)
    features, mask = trees(8, WIDTH, hops, FEATURES, torch.float64)
    other = torch.where(mask.unsqueeze(2), features, 100 * torch.randn_like(features))
    close(model(other, mask), model(features, mask), 1e-12)


# --- the fast engine ------------------------------------------------------------------------------------


@every_kind
def test_the_fast_engine_clips_as_torch_func(name, options, hops):
    model = build(name, **options)
    params = dict(model.named_parameters())
    batch = (*trees(8, WIDTH, hops, FEATURES, torch.float64), torch.randint(CLASSES, (8,)))

    def one(values: dict[str, Tensor], *example: Tensor) -> Tensor:
        def call(*inputs: Tensor) -> Tensor:
            return functional_call(model, values, inputs)

        return loss(call, tuple(x.unsqueeze(0) for x in example)).sum()

    gradients = vmap(grad(one), in_dims=(None, 0, 0, 0))({k: p.detach() for k, p in params.items()}, *batch)
    norms = sum(g.flatten(1).square().sum(1) for g in gradients.values()).sqrt()
    factors = (norms.median() / norms).clamp(max=1)  # some are clipped, some are not
    engine = ENGINES["bookkeeping"](model, loss, batch)
    close(engine.norms(Geometry.ball(params.values())), norms, 1e-12)
    sums = engine.weighted_sum(factors)
    for key, p in params.items():
        close(sums[p], torch.einsum("b,b...->...", factors, gradients[key]), 1e-12)


@every_kind
def test_a_run_takes_the_fast_engine(name, options, hops):
    model = build(name, **options).float()
    data = TensorDataset(*trees(20, WIDTH, hops, FEATURES, torch.float32), torch.randint(CLASSES, (20,)))
    run = adamas.make_private(
        model,
        rules.SGD(model.parameters(), lr=0.1),
        data,
        loss,
        batch_size=5,
        steps=2,
        noise_multiplier=1.0,
        delta=1e-3,
        seed=0,
        engine="bookkeeping",
    )
    assert len(list(run)) == 2
    assert run.engine == "bookkeeping"
    assert not any("Jacobian" in cost.formula for cost in run.explain().costs)


# --- refusals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hops", "rows", "sizes"), [(1, 1, r"1 \+ W"), (2, 1, r"1 \+ W \+ W\*W"), (2, 8, r"1 \+ W \+ W\*W")]
)
@pytest.mark.parametrize("name", ["gcn", "graphsage"])
def test_rows_that_fit_no_width(name, hops, rows, sizes):
    model, features = build(name, hops=hops).float(), torch.randn(2, rows, FEATURES)
    match = rf"features of shape \(2, {rows}, 5\).* {sizes} rows.*{name}.*hops={hops}.*got {rows} rows\. Give"
    with pytest.raises(ValueError, match=match):
        model(features, torch.ones(2, rows, dtype=torch.bool))


@pytest.mark.parametrize(
    ("features", "mask", "found"),
    [
        ((2, FEATURES), None, r"\(2, 5\) and no mask"),
        ((2, 4, FEATURES), None, r"\(2, 4, 5\) and no mask"),
        ((2, 4, FEATURES), (2, 3), r"\(2, 4, 5\) and mask of shape \(2, 3\)"),
        ((2, FEATURES), (2,), r"\(2, 5\) and mask of shape \(2,\)"),
    ],
)
@pytest.mark.parametrize("name", ["gcn", "graphsage"])
def test_examples_that_are_no_trees(name, features, mask, found):
    mask = None if mask is None else torch.ones(mask, dtype=torch.bool)
    with pytest.raises(ValueError, match=rf"mask \(examples, rows\) for '{name}'.*{found}.*'node-mlp'"):
        build(name).float()(torch.randn(features), mask)


def test_node_mlp_refuses_other_shapes():
    with pytest.raises(ValueError, match=r"shape \(5,\) to be \(examples, features\).*'node-mlp'"):
        build("node-mlp").float()(torch.randn(FEATURES))


@pytest.mark.parametrize(
    ("name", "shape", "option", "message"),
    [
        *(
            (name, (1, 28, 28), {}, r"input_shape=\(1, 28, 28\) to be \(features,\).*'mlp'")
            for name in GRAPH_MODELS
        ),
        *((name, (5,), {"hidden": 0}, "hidden=0") for name in GRAPH_MODELS),
        ("gcn", (5,), {"hops": 3}, "hops=3 to be one of 1, 2"),
        ("gcn", (5,), {"skip": "all"}, "skip='all' to be one of 'own', 'mean'"),
        ("graphsage", (5,), {"hops": 0}, "hops=0 to be one of 1, 2"),
        ("node-mlp", (5,), {"layers": -1}, "layers=-1"),
    ],
)
def test_wrong_options(name, shape, option, message):
    with pytest.raises(ValueError, match=message):
        MODELS[name](shape, 10, **option)
