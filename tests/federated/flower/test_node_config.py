"""The configuration of a node is checked, and has safe defaults."""

import math

import pytest

pytest.importorskip("flwr")

from adamas.federated.flower.node_config import NodeConfig, RefusedError
from tests.support.federated_runs import blobs


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "partition-id"),
        ({"partition-id": 0, "max_epsilon": 1.0}, "got 'max_epsilon'"),
        ({"partition-id": 0, "max-epsilon": 1.0, "ledger": "x"}, "with max-epsilon to have delta"),
        ({"partition-id": 0, "max-epsilon": 1.0, "delta": 1e-5}, "with max-epsilon to have ledger"),
        ({"partition-id": 0, "max-epsilon": -1.0, "delta": 1e-5, "ledger": "x"}, "max-epsilon"),
        ({"partition-id": 0, "max-epsilon": 1.0, "delta": 2.0, "ledger": "x"}, "delta"),
        ({"partition-id": True}, "partition-id=True"),
        ({"partition-id": "0"}, "partition-id='0'"),
        ({"partition-id": 0, "allow-seed": "yes"}, "allow-seed to be true or false"),
        ({"partition-id": 0, "trust-server": True, "ledger": "x"}, "either ledger or trust-server"),
        ({"partition-id": 0, "accountant": "prv"}, "accountant='prv'"),
        ({"partition-id": 0, "min-noise-multiplier": 0.001}, "min-noise-multiplier=0.001"),
        ({"partition-id": 0, "min-noise-multiplier": math.nan}, "min-noise-multiplier=nan"),
        ({"partition-id": 0, "max-clip-norm": math.inf}, "max-clip-norm=inf"),
        ({"partition-id": 0, "max-local-steps": 0}, "max-local-steps=0"),
        ({"partition-id": 0, "max-batch-size": 1.5}, "max-batch-size=1.5"),
    ],
)
def test_a_bad_node_configuration_is_refused(config, message):
    with pytest.raises((ValueError, TypeError), match=message):
        NodeConfig.of(config)


def test_a_partition_id_beyond_the_number_of_clients_is_refused():
    with pytest.raises(RefusedError, match="partition-id=4 below the number of clients=4"):
        NodeConfig.of({"partition-id": 4}).check(blobs())


@pytest.mark.slow
def test_by_default_a_node_accounts_by_pld_and_requires_the_least_noise_it_can_account_for():
    assert NodeConfig.of({"partition-id": 0}).min_noise_multiplier == 0.02
    assert NodeConfig.of({"partition-id": 0}).accountant == "pld"
