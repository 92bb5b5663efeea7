"""Settings of a federated training: plain data that a command line, a file or a message can carry."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from adamas import _validate
from adamas._streams import Seed
from adamas.data import DATASETS, VALIDATION
from adamas.experiment.settings import check_option_names
from adamas.federated.accounting import UNITS, Plan
from adamas.federated.algorithm import Algorithm
from adamas.federated.blocks import Blocks
from adamas.federated.checks import read_json
from adamas.federated.registry import ALGORITHMS
from adamas.models import MODELS
from adamas.run.options import SharedOptions

_KINDS: dict[type, type] = {str: str, bool: bool, dict[str, Any]: dict}  # annotation -> type to check


@dataclass(frozen=True, kw_only=True)
class FederatedSettings(SharedOptions):
    """A federated training.

    The options that it shares with a run, such as `epsilon`, are those of `make_private`, and are inherited.

    Attributes:
        algorithm: A name in `ALGORITHMS`.
        algorithm_options: Its hyperparameters.
        task: Name of a Python module with model, data and loss; see `adamas.federated.Task`. Empty if `data`
            and `model` are given.
        data: A name in `adamas.data.DATASETS`, partitioned over the clients.
        data_options: Options of the data set.
        dirichlet: Concentration of the classes on clients; see `dirichlet_partition`.
        least_examples: Minimum number of examples of a client; None for `batch_size`. The client with the
            fewest examples needs the most noise, and all clients have the same.
        equal_sizes: Whether all clients have the same number of examples; see `dirichlet_partition`.
        model: A name in `adamas.models.MODELS`.
        model_options: Options of the model.
        clients: Number of clients.
        participation: Share of the clients that take part in a round.
        rounds: Number of rounds.
        local_steps: Steps of a client in a round.
        batch_size: Expected number of examples of a local step.
        unit: "record" or "client": whose influence is hidden.
        clip_norm: Clipping norm of an example's gradient; for the unit "client", of a whole update.
        count_on_participation: Whether the random choice of clients counts for the privacy of records (the
            nested bound). Then nobody may know or choose who takes part: no file says it, and there is no
            `seed`.

    Example:
        >>> settings = FederatedSettings(data="digits", model="mlp", clients=4, rounds=2, local_steps=3,
        ...                              batch_size=20, epsilon=3.0, delta=1e-5)
        >>> FederatedSettings.from_json(settings.to_json()) == settings
        True
    """

    algorithm: str = "dp-fedadamw"
    algorithm_options: dict[str, Any] = field(default_factory=dict)
    task: str = ""
    data: str = ""
    data_options: dict[str, Any] = field(default_factory=dict)
    dirichlet: float = 0.6
    least_examples: int | None = None
    equal_sizes: bool = False
    model: str = ""
    model_options: dict[str, Any] = field(default_factory=dict)
    clients: int
    participation: float = 1.0
    rounds: int
    local_steps: int
    unit: str = "record"
    count_on_participation: bool = False

    def __post_init__(self) -> None:
        for one in fields(self):
            kind = _KINDS.get(one.type)  # type: ignore[arg-type]
            if kind is not None and type(getattr(self, one.name)) is not kind:
                raise TypeError(
                    f"Expected {one.name}={getattr(self, one.name)!r} to be of type {kind.__name__}."
                )
        _validate.one_of(ALGORITHMS, algorithm=self.algorithm)
        _validate.one_of(UNITS, unit=self.unit)
        self.check_shared()
        _validate.count(clients=self.clients, rounds=self.rounds, local_steps=self.local_steps)
        _validate.rate(participation=self.participation)
        _validate.positive(clip_norm=self.clip_norm, dirichlet=self.dirichlet)
        _validate.probability(delta=self.delta)
        if bool(self.task) == bool(self.data or self.model) or bool(self.data) != bool(self.model):
            raise ValueError("Expected either task, a Python module, or both data and model.")
        if self.count_on_participation and self.unit == "client":
            raise ValueError(
                "Expected count_on_participation=False for unit='client', which counts on it anyway."
            )
        if self.count_on_participation and self.seed is not None:
            raise ValueError(
                "Expected seed=None with count_on_participation: whoever knows the seed knows who takes part."
            )
        if self.least_examples is not None:
            _validate.count(least_examples=self.least_examples)
        Seed(self.seed)  # checks it
        if self.least_examples is not None and self.least_examples < self.batch_size:
            raise ValueError(
                f"Expected least_examples={self.least_examples} >= batch_size={self.batch_size}."
            )
        self.make_algorithm()
        if self.data:
            data = self.data.removesuffix(VALIDATION)
            _validate.one_of(DATASETS, data=data)
            _validate.one_of(MODELS, model=self.model)
            check_option_names("data_options", self.data_options, DATASETS[data])
            check_option_names("model_options", self.model_options, MODELS[self.model])

    @property
    def public_seed(self) -> int:
        """Seed of the initial weights and of the partition over clients, which are public."""
        return 0 if self.seed is None else self.seed

    def make_algorithm(self, blocks: Blocks | None = None) -> Algorithm:
        """Makes the algorithm with its hyperparameters.

        Args:
            blocks: The partition of the parameters, for an algorithm with blocks; None takes its own.
        """
        kind = ALGORITHMS[self.algorithm]
        names = [one.name for one in fields(kind)]
        options: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in self.algorithm_options.items()
        }
        if blocks is not None and "blocks" in names:
            options["blocks"] = blocks
        elif "blocks" in names:
            names.remove("blocks")
        for option in options:
            if option not in names:
                raise ValueError(
                    f"Expected algorithm_options of {self.algorithm} among {names}, got {option!r}."
                )
        return kind(**options)

    def plan(self, sizes: list[int]) -> Plan:
        """Makes the plan, given each client's number of examples: 0 for an absent one."""
        present = max(1, self.clients - sizes.count(0))
        share = max(1, round(self.participation * present)) / present
        fewest = min((size for size in sizes if size), default=1)
        return Plan(
            unit=self.unit,
            rounds=self.rounds,
            local_steps=self.local_steps,
            sampling_rate=share if self.unit == "client" else min(1.0, self.batch_size / fewest),
            queries=self.make_algorithm().queries if self.unit == "record" else 1,
            delta=self.delta,
            accountant=self.accountant,
            participation=share if self.count_on_participation else None,
        )

    def noise(self, plan: Plan) -> float:
        """Returns the noise multiplier, given or calibrated."""
        if self.noise_multiplier is not None:
            return self.noise_multiplier
        assert self.epsilon is not None
        return plan.noise_multiplier(self.epsilon)

    def to_json(self) -> str:
        """Writes the settings as text that `from_json` reads."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "FederatedSettings":
        """Reads the text of `to_json`."""
        return cls(**read_json(text))

    @classmethod
    def from_flat(cls, config: Mapping[str, Any]) -> "FederatedSettings":
        """Reads one level of names, as in Flower's configuration of a run.

        Args:
            config: Names with hyphens; the name of an option follows a dot.

        Example:
            >>> FederatedSettings.from_flat({"algorithm": "dp-fedavg", "algorithm-options.lr": 0.1,
            ...     "data": "digits", "model": "mlp", "clients": 4, "rounds": 2, "local-steps": 3,
            ...     "batch-size": 20, "epsilon": 3.0, "delta": 1e-5}).algorithm_options
            {'lr': 0.1}
        """
        known = {one.name for one in fields(cls)}
        values: dict[str, Any] = {}
        for key, value in config.items():
            name, _, option = key.partition(".")
            name = name.replace("-", "_")
            if name not in known or bool(option) != name.endswith("_options"):
                raise ValueError(f"Expected names of settings such as local-steps, got {key!r}.")
            if option:
                values.setdefault(name, {})[option.replace("-", "_")] = value
            else:
                values[name] = value
        return cls(**values)
