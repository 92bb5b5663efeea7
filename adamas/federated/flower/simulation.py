"""Runs a training in Flower's simulation: all clients are virtual nodes on one machine."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Before the first import of Flower and Ray: no telemetry, and no notice about a future change of Ray.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from adamas.federated.flower.client_app import make_app
from adamas.federated.flower.server_app import TIMEOUT, serve
from adamas.federated.settings import FederatedSettings
from adamas.federated.training import Line

# Whoever simulates the clients has their data.
_CONFIG = {"trust-server": True}


def simulate(
    settings: FederatedSettings,
    out: Path,
    *,
    timeout: float = TIMEOUT,
    cores_per_client: float = 1.0,
    progress: Callable[[Line], None] = lambda _: None,
) -> Line:
    """Runs a training in Flower's simulation, and returns its result.

    Args:
        settings: The training.
        out: The folder of its files.
        timeout: Seconds that the clients of a round have to answer.
        cores_per_client: Cores per client. As many clients run at once as there are cores for.
        progress: Called with each round's line.
    """
    results: list[Line] = []
    failures: list[BaseException] = []
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            results.append(serve(grid, settings, out, timeout=timeout, progress=progress))
        except BaseException as error:  # Flower would end without an error
            failures.append(error)
            raise

    backend: dict[str, dict[str, Any]] = {"client_resources": {"num_cpus": cores_per_client, "num_gpus": 0.0}}
    # Its warnings are about its own functions, and progress is shown elsewhere.
    logging.getLogger("flwr").setLevel(logging.ERROR)
    try:
        run_simulation(server_app, make_app(_CONFIG), settings.clients, backend_config=backend)
    except Exception:
        if not failures:
            raise
    if failures:
        raise failures[0]
    if not results:
        raise RuntimeError("Flower's simulation ended without a result. Its log says why.")
    return results[0]
