"""`adamas check` catches batches that are not drawn, loaded or split as stated."""

import numpy as np
import pytest

from adamas.check import PASS
from adamas.sampling import Draw, Poisson, Shuffled
from tests.support.sabotaged_runs import ANEW, RATE, SIZES, B, N, assert_caught, made, rows_of


def of_indices(indices, **settings):
    """Returns a function that makes a run whose sampler draws `indices(run, step)`."""

    def make_run():
        run = made(**settings)
        run.loader.sampler.indices = lambda step: Draw(indices(run, step))
        return run

    return make_run


def of_draws(change, **settings):
    """Returns a function that makes a run whose loader draws `change(draw, step)`."""

    def make_run():
        run = made(**settings)
        original = run.loader.draw
        run.loader.draw = lambda step: change(original, step)
        return run

    return make_run


def generator(run, step):
    return run.noise.seed.generator("sabotage", step)


def fixed_size(run, step):
    return generator(run, step).choice(N, B, replace=False)


def shuffled(run, step):
    return Shuffled(N, B, run.noise.seed).indices(step).indices


def shuffled_with_random_sizes(run, step):
    epoch, place = divmod(step, N // B - 2)
    order = generator(run, epoch).permutation(N)
    cuts = np.cumsum([0, *generator(run, 10**6 + epoch).binomial(N, B / N, N // B - 2)])
    return order[cuts[place] : cuts[place + 1]]


def shuffled_once(run, step):
    return Shuffled(N, B, run.noise.seed).indices(step % (N // B)).indices


def higher_rate(run, step):
    return np.flatnonzero(generator(run, step).random(N) < 1.05 * B / N)


def neighbours(run, step):
    size = generator(run, step).binomial(N, B / N)
    return (int(generator(run, 10**6 + step).random() * N) + np.arange(size)) % N


def half_of_the_data(run, step):
    return np.flatnonzero(generator(run, step).random(N // 2) < 2 * B / N)


def one_example_always(run, step):
    drawn = Poisson(N, B, run.noise.seed).indices(step).indices
    return np.unique([*drawn[drawn != drawn.max(initial=0)], 7]) if len(drawn) else drawn


def with_replacement(run, step):
    return generator(run, step).integers(0, N, generator(run, 10**6 + step).binomial(N, B / N))


def each_batch_twice():
    run = made()
    original = run.loader.batches

    def batches(first, end):
        for batch in original(first, end):
            yield batch
            yield batch

    run.loader.batches = batches
    return run


def overlapping_micro_batches():
    run = made(micro_batch_size=16)

    def chunks(draw):
        return [(draw.indices[i : i + 17], 0) for i in range(0, len(draw.indices), 16)]

    run.loader.chunks = chunks
    return run


def padding_that_counts():
    run = made(sampling="truncated-poisson", max_batch_size=60, accountant="pld", steps=2)
    original = run.loader.chunks
    run.loader.chunks = lambda draw: [(indices, 0) for indices, _ in original(draw)]
    return run


def a_higher_rate_of_truncated_batches():
    run = made(sampling="truncated-poisson", max_batch_size=50, accountant="pld", steps=2)

    def indices(step):
        chosen = higher_rate(run, step)[:50]
        return Draw(
            np.concatenate([chosen, np.zeros(50 - len(chosen), dtype=chosen.dtype)]), 50 - len(chosen)
        )

    run.loader.sampler.indices = indices
    return run


def an_epoch_with_a_batch_twice():
    run = made(sampling="shuffled", steps=5)
    original = run.loader.draw
    run.loader.draw = lambda step: original(step - step % 2)
    return run


def workers_that_load_others():
    run = made(num_workers=1)
    original = run.loader._prefetch

    def prefetch(first, end):
        return ([(data[0] + 1) % N] for data in original(first, end))

    run.loader._prefetch = prefetch
    return run


DRAWN = {
    "fixed-size batches as Poisson": (of_indices(fixed_size), [SIZES]),
    "shuffled batches as Poisson": (of_indices(shuffled), [SIZES, ANEW]),
    "shuffled batches of random sizes as Poisson": (of_indices(shuffled_with_random_sizes), [ANEW]),
    "one permutation for all epochs": (of_indices(shuffled_once), [SIZES, ANEW]),
    "a rate 5% too high": (of_indices(higher_rate), [RATE]),
    "neighbours that come together": (of_indices(neighbours), [ANEW]),
    "half of the data at twice the rate": (of_indices(half_of_the_data), [RATE, ANEW]),
    "one example in all batches": (of_indices(one_example_always), [RATE]),
    "examples drawn with replacement": (of_indices(with_replacement), [RATE]),
    "each draw for two steps": (of_draws(lambda draw, step: draw(step // 2)), [ANEW]),
    "50 draws again and again": (of_draws(lambda draw, step: draw(step % 50)), [ANEW]),
    "each batch twice in a row": (each_batch_twice, [ANEW]),
    "micro-batches that overlap": (overlapping_micro_batches, [RATE]),
    "padding that counts": (padding_that_counts, [RATE]),
    "truncated batches at a rate 5% too high": (a_higher_rate_of_truncated_batches, [RATE]),
    "workers that load other examples": (workers_that_load_others, [RATE]),
    "an epoch with a batch twice": (an_epoch_with_a_batch_twice, [RATE]),
}


def test_workers_that_load_what_was_drawn_pass(monkeypatch):
    assert rows_of(monkeypatch, lambda: made(num_workers=1), RATE)[RATE].verdict == PASS


@pytest.mark.audits
@pytest.mark.parametrize("kind", DRAWN)
def test_batches_that_are_not_drawn_as_stated_are_caught(monkeypatch, kind):
    make_run, names = DRAWN[kind]
    assert_caught(monkeypatch, make_run, *names)
