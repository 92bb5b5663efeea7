"""Fixtures that several tests of `adamas check` share."""

import pytest

from tests.support.checked_runs import Reader, Texts, maker, text_loss


@pytest.fixture
def reader():
    return maker(Reader, loss=text_loss, dataset=Texts(), seed=3)
