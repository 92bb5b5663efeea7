"""A number of examples allows only arithmetic and comparisons that hold for every batch."""

import copy
import math
import operator
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adamas import UnsupportedError
from adamas.engines.bookkeeping.counts import Count, Shape, Unit

pytestmark = pytest.mark.filterwarnings("ignore")

OPERATORS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "/": operator.truediv,
    "%": operator.mod,
    "**": operator.pow,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "divmod": divmod,
}
COMPARISONS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]
NUMBERS = st.one_of(st.integers(-4, 12), st.booleans())
FLOATS = st.floats(-3, 12, allow_nan=False)


def outcome(function, *args):
    try:
        return function(*args)
    except (UnsupportedError, ZeroDivisionError, TypeError) as error:
        return type(error)


@pytest.mark.slow
@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.sampled_from(sorted(OPERATORS)), st.integers(1, 4), st.one_of(NUMBERS, FLOATS), st.booleans())
def test_arithmetic_is_refused_or_gives_the_same_multiple_in_every_batch(name, times, other, reflected):
    answers = []
    for n in (2, 3, 7):
        pair = (Count(times, Unit(n)), other)
        pair = pair[::-1] if reflected else pair
        found = outcome(OPERATORS[name], *pair)
        if isinstance(found, Count):
            plain = [operator.index(v) if isinstance(v, Count) else v for v in pair]
            assert operator.index(found) == OPERATORS[name](*plain)
            answers.append(found.times)
        else:
            answers.append(found)
    assert len({repr(answer) for answer in answers}) == 1
    if isinstance(answers[0], int | float) and not isinstance(found, Count):
        assert answers[0] == 0


@settings(max_examples=100, derandomize=True, deadline=None)
@given(st.sampled_from(sorted(OPERATORS)), st.integers(1, 6), st.integers(1, 6))
def test_arithmetic_of_two_numbers_is_refused_unless_they_count_the_same_examples(name, a, b):
    answers = []
    for n in (2, 3, 7):
        unit = Unit(n)
        found = outcome(OPERATORS[name], Count(a, unit), Count(b, unit))
        if isinstance(found, Count):
            assert operator.index(found) == OPERATORS[name](a * n, b * n)
        elif isinstance(found, int | float):
            assert found == OPERATORS[name](a * n, b * n)
        answers.append(found.times if isinstance(found, Count) else found)
        assert outcome(OPERATORS[name], Count(a, unit), Count(b, Unit(n))) is UnsupportedError
    assert len({repr(answer) for answer in answers}) == 1


@settings(max_examples=300, derandomize=True, deadline=None)
@given(st.sampled_from(COMPARISONS), st.integers(1, 4), st.one_of(NUMBERS, FLOATS), st.booleans())
def test_comparisons_are_refused_unless_all_batches_agree(compare, times, other, reflected):
    truth = {(compare(other, times * n) if reflected else compare(times * n, other)) for n in range(2, 40)}
    for n in (2, 3, 7):
        unit = Unit(n)
        count = Count(times, unit)
        found = outcome(compare, *((other, count) if reflected else (count, other)))
        if isinstance(found, bool):
            assert truth == {found}
            one = compare(other, times) if reflected else compare(times, other)
            assert unit.single_differs == (one != found)
        else:
            assert found is UnsupportedError
            assert len(truth) == 2


FUNCTIONS = [
    *(float, int, complex, round, abs, operator.neg, operator.pos, operator.inv),
    *(math.sqrt, math.floor, math.ceil, math.trunc, math.exp),
]
EXPRESSIONS = {
    "1 / n": lambda n: 1 / n,
    "n / 2": lambda n: n / 2,
    "n + 1": lambda n: n + 1,
    "n - 1": lambda n: n - 1,
    "1 - n": lambda n: 1 - n,
    "n * n": lambda n: n * n,
    "n * 1.5": lambda n: n * 1.5,
    "n * -1": lambda n: n * -1,
    "n ** 2": lambda n: n**2,
    "2 ** n": lambda n: 2**n,
    "n // 2": lambda n: n // 2,
    "n % 4": lambda n: n % 4,
    "n > 8": lambda n: n > 8,
    "n == 5": lambda n: n == 5,
    "sum": lambda n: sum([n, 1.0]),
    "max": lambda n: max(n, 8),
    "bit_length": lambda n: n.bit_length(),
    "real": lambda n: n.real,
    "numerator": lambda n: n.numerator,
    "as_integer_ratio": lambda n: n.as_integer_ratio(),
    "conjugate": lambda n: n.conjugate(),
}


@pytest.mark.parametrize(
    "use", [*FUNCTIONS, *EXPRESSIONS.values()], ids=[*(f.__name__ for f in FUNCTIONS), *EXPRESSIONS]
)
def test_a_use_that_depends_on_the_number_of_examples_is_refused(use):
    with pytest.raises(UnsupportedError):
        use(Count(1, Unit(5)))


def test_a_number_of_examples_is_a_size():
    n = Count(1, Unit(5))
    assert list(range(n)) == [0, 1, 2, 3, 4]
    assert torch.zeros(n, 2).shape == (5, 2)
    assert isinstance(n * 3, Count)
    assert isinstance(3 * n, Count)
    assert type(n * 0) is int
    assert sum([n, n]).times == 2
    assert n + 0 is n
    assert (n * 6) // 3 == n * 2
    assert (n * 6) // n == 6
    assert (n * 6) % n == 0
    assert n - n == 0
    assert bool(n)
    assert Shape((n, 3)).numel().times == 3
    assert Shape((n, 3, 4))[1:] == (3, 4)
    assert copy.deepcopy(n) is n
    assert type(pickle.loads(pickle.dumps(n))) is int
    assert {n: 1}[n] == 1


def test_a_number_of_selected_rows_answers_nothing():
    n = Count(1, Unit(5, chosen=True))
    for use in (bool, lambda n: n == 0, lambda n: n > 0, lambda n: n < 1, float, int):
        with pytest.raises(UnsupportedError):
            use(n)
