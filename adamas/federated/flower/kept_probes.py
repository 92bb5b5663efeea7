"""Keeps the outcome of a node's probes from one message to the next, within a process.

On Flower, a client is made for one message. In a simulation, a few Ray actors handle the messages of all
nodes, and live until it ends: a later round finds what an earlier one has kept. A deployed node probes in
every round, because `flwr.supernode.runtime.run_clientapp` handles one message and exits (flwr 1.41).

A probe holds the name of an engine, and the structure and options that it was chosen for. It holds no
example, parameter, ledger or memory of a client. `adamas.federated.local_runs` says which checks do not rely
on it.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from adamas.federated.local_runs import LocalRuns, Probe


class KeptProbes:
    """The probes of the nodes that were asked last.

    Args:
        most: Maximum number of probes.
    """

    def __init__(self, most: int = 1024) -> None:
        self._most = most
        self._kept: OrderedDict[Hashable, Probe] = OrderedDict()

    @contextmanager
    def lent(self, key: Hashable, client: LocalRuns) -> Iterator[None]:
        """Gives a client the probe that is kept under a key, and keeps the one that it has afterwards.

        Args:
            key: The run, the node and the settings.
            client: A client that was made for them.
        """
        known = self._kept.pop(key, None)
        if known is not None:
            client.adopt_probe(known)
        try:
            yield
        finally:
            if client.probe is not None:
                self._kept[key] = client.probe
                while len(self._kept) > self._most:
                    self._kept.popitem(last=False)
