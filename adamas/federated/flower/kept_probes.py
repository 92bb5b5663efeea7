"""Keeps the outcome of a node's probes from one message to the next, within a process.

Flower makes nothing of a client outlive its message. A simulated node's messages are handled by a few
long-lived Ray actors, so that a later round finds what an earlier one left in the process. A deployed
SuperNode starts a process for each message (`flwr.supernode.runtime.run_clientapp` handles one and exits):
there every round probes.

A probe holds the name of an engine and the shapes that it was chosen for, and neither examples, parameters,
ledger nor memory of a client. See `adamas.federated.local_runs` for what is checked without it.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from adamas.federated.local_runs import LocalRuns, Probe


class KeptProbes:
    """The probes of the clients that were used last.

    Args:
        most: How many are kept.
    """

    def __init__(self, most: int = 1024) -> None:
        self._most = most
        self._kept: OrderedDict[Hashable, Probe] = OrderedDict()

    @contextmanager
    def lent(self, key: Hashable, client: LocalRuns) -> Iterator[None]:
        """Gives a client the probe that is kept under a key, and keeps the one that it has afterwards.

        Args:
            key: Names the training, the node and the settings.
            client: A client that was made anew from them.
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
