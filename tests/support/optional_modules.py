"""The modules of adamas that need a package of an extra, which may not be installed."""

from importlib.util import find_spec

NEEDS = {
    "adamas.federated.flower.client_app": "flwr",
    "adamas.federated.flower.messages": "flwr",
    "adamas.federated.flower.node_ledger": "flwr",
    "adamas.federated.flower.requests": "flwr",
    "adamas.federated.flower.server_app": "flwr",
    "adamas.federated.flower.simulation": "flwr",
    "adamas.integrations.lightning": "lightning",
    "adamas.integrations.lightning.keeps_ledger": "lightning",
    "adamas.integrations.lightning.log_epsilon": "lightning",
    "adamas.integrations.lightning.one_device": "lightning",
    "adamas.integrations.lightning.refusals": "lightning",
    "adamas.integrations.lightning.released": "lightning",
    "adamas.integrations.lightning.run_files": "lightning",
    "adamas.integrations.lightning.step_loss": "lightning",
    "adamas.integrations.lightning.strategy": "lightning",
    "adamas.integrations.lightning.train_data": "lightning",
    "adamas.tabular": "pandas",
    "adamas.tabular.base": "pandas",
    "adamas.tabular.classifier": "pandas",
    "adamas.tabular.defaults": "pandas",
    "adamas.tabular.encoding": "pandas",
    "adamas.tabular.files": "pandas",
    "adamas.tabular.given": "pandas",
    "adamas.tabular.network": "pandas",
    "adamas.tabular.payment": "pandas",
    "adamas.tabular.regressor": "pandas",
    "adamas.tabular.schema": "pandas",
    "adamas.tabular.schema_files": "pandas",
    "adamas.tabular.scores": "pandas",
    "adamas.tabular.statistics": "pandas",
    "adamas.tabular.tables": "pandas",
    "adamas.integrations.transformers": "transformers",
    "adamas.integrations.transformers.arguments": "transformers",
    "adamas.integrations.transformers.callback": "transformers",
    "adamas.integrations.transformers.cards": "transformers",
    "adamas.integrations.transformers.checkpoints": "transformers",
    "adamas.integrations.transformers.logs": "transformers",
    "adamas.integrations.transformers.objective": "transformers",
    "adamas.integrations.transformers.privacy": "transformers",
    "adamas.integrations.transformers.quiet": "transformers",
    "adamas.integrations.transformers.rule": "transformers",
    "adamas.integrations.transformers.trackers": "transformers",
    "adamas.integrations.transformers.trainer": "transformers",
    "adamas.integrations.transformers.training": "transformers",
}
"""Module -> the package without which it cannot be imported."""


def is_missing(package: str) -> bool:
    """Tells whether a package is not installed. One that is installed and broken is not missing."""
    return find_spec(package) is None


def modules_left_out() -> dict[str, str]:
    """Returns the modules that cannot be imported here, with the missing package."""
    return {module: package for module, package in NEEDS.items() if is_missing(package)}
