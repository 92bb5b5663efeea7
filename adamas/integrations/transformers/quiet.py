"""Keeps other packages from printing what depends on single private records.

Tokenizers name the length of a text that is too long, TRL the end of a prompt that was left out, and models
say whether a batch has padding. While private records are prepared, or a release is made, such messages are
dropped.
"""

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

_TOKENIZERS = r"transformers\.(tokenization|models\..*\.(tokenization|processing)|data\.|.*processing_utils)"
PREPARING = re.compile(rf"trl(\.|$)|{_TOKENIZERS}")
"""Loggers and modules that read records one by one, before the training."""

RELEASING = re.compile(r"(transformers|trl|peft|datasets|accelerate)(\.|$)")
"""Loggers and modules that read the records of a batch."""


@contextmanager
def quiet(names: re.Pattern[str]) -> Iterator[None]:
    """Drops the messages and warnings of loggers and modules whose names match; errors are raised.

    Args:
        names: `PREPARING` or `RELEASING`.
    """
    nothing = _Nothing()  # of its own, so that one may be inside another
    with ExitStack() as undo:
        for logger in _loggers(names):
            logger.addFilter(nothing)
            undo.callback(logger.removeFilter, nothing)
        undo.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", module=names.pattern)
        yield


def _loggers(names: re.Pattern[str]) -> list[logging.Logger]:
    known = logging.root.manager.loggerDict.copy()
    return [one for name, one in known.items() if names.match(name) and isinstance(one, logging.Logger)]


class _Nothing(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return False
