"""Checks that clients, plan and algorithm of a training fit together, before its first round."""

from collections.abc import Sequence

from adamas.errors import UnsupportedError
from adamas.federated.accounting import Plan
from adamas.federated.algorithm import Algorithm

_ROUNDING = 1 - 1e-12  # of quotients that are compared


def check_sizes(plan: Plan, sizes: Sequence[int], batch_size: int) -> None:
    """Raises unless every client has enough examples, and delta is below one over the protected units.

    Args:
        plan: The plan.
        sizes: Number of examples of each client; 0 for an absent one.
        batch_size: Expected number of examples of a local step.
    """
    present = [size for size in sizes if size]
    if min(present, default=0) < batch_size:
        raise ValueError(
            f"Expected clients with at least batch_size={batch_size} examples each, got {list(sizes)}. "
            "Lower batch_size, or leave out the clients with fewer."
        )
    units = len(present) if plan.unit == "client" else max(sizes)
    if plan.delta >= 1 / units:
        raise ValueError(
            f"Expected a plan with delta={plan.delta:g} < {1 / units:.3g}, one over the number of "
            f"{'clients' if plan.unit == 'client' else 'examples of the largest client'}: with more, "
            "publishing one of them would count as private. Lower delta."
        )


def check_algorithm(plan: Plan, algorithm: Algorithm, seed: int | None) -> None:
    """Raises unless the plan's guarantee holds for all that the algorithm uploads and remembers."""
    if plan.participation is not None and seed is not None:
        raise ValueError(
            "Expected seed=None with a plan that counts on participation: whoever knows the seed knows who "
            "takes part."
        )
    if plan.participation is not None and algorithm.clients_remember:
        raise UnsupportedError(
            "A plan that counts on participation needs rounds that do not depend on who took part before, "
            f"and clients of {type(algorithm).__name__} remember. Use participation=None in the plan "
            "(count_on_participation=False), or another algorithm."
        )
    if plan.unit == "client" and algorithm.uploads != ("increment",):
        raise UnsupportedError(
            f"unit='client' adds noise to increments alone, and {type(algorithm).__name__} also uploads "
            f"{', '.join(algorithm.uploads[1:])}. Use unit='record', or an algorithm such as dp-fedavg."
        )
    if plan.unit == "record" and plan.queries < algorithm.queries:
        raise ValueError(
            f"Expected a plan with queries={algorithm.queries}, the releases that "
            f"{type(algorithm).__name__} makes on each batch, got queries={plan.queries}."
        )


def check_rates(plan: Plan, *, fewest: int, batch_size: int, expected: int, clients: int) -> None:
    """Raises unless the plan's rates are at least those of the training.

    Args:
        plan: The plan.
        fewest: Number of examples of the smallest client.
        batch_size: Expected number of examples of a local step.
        expected: Expected number of clients in a round.
        clients: Number of clients that are present.
    """
    rate = batch_size / fewest
    if plan.unit == "record" and plan.sampling_rate < rate * _ROUNDING:
        raise ValueError(
            f"Expected a plan whose sampling_rate={plan.sampling_rate:g} is at least batch_size / the "
            f"fewest examples of a client = {rate:g}."
        )
    share = plan.sampling_rate if plan.unit == "client" else plan.participation
    if share is not None and share < expected / clients * _ROUNDING:
        name = "sampling_rate" if plan.unit == "client" else "participation"
        raise ValueError(
            f"Expected a plan whose {name}={share:g} is at least {expected} of {clients} clients = "
            f"{expected / clients:g}, the share that takes part in a round."
        )
