"""Reads and restores the memory of tokenizers: tokens, settings, and notes of shown warnings."""

import pickle
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

_WHOLE = 16384  # tokens of a vocabulary that is compared as a whole; of a longer one, some are
_SAMPLE = 256
_COMPILED = {
    *("tokenizers", "tokenizers.models", "tokenizers.normalizers", "tokenizers.pre_tokenizers"),
    *("tokenizers.processors", "tokenizers.decoders", "tokenizers.trainers"),
}
_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
# Keys that transformers writes into `deprecation_warnings` when it shows a warning. Whether it was shown can
# depend on the data: the last key reveals that a text was long.
_SHOWN = (
    "Asking-to-pad-a-fast-tokenizer",
    "max_len_single_sentence",
    "max_len_sentences_pair",
    "sequence-length-is-longer-than-the-specified-maximum",
)
_MISSING = object()


def is_native(value: object) -> bool:
    """Tells whether an object is a tokenizer of `tokenizers`, whose state Python's attributes do not show."""
    kind = type(value)
    return kind.__name__ == "Tokenizer" and kind.__module__ == "tokenizers"


def is_part(value: object) -> bool:
    """Tells whether an object is a part of a native tokenizer, such as a normalizer or a token."""
    return any(kind.__module__ in _COMPILED for kind in type(value).__mro__)


def notes_warnings(value: object) -> bool:
    """Tells whether an object is a tokenizer of `transformers`, which notes what warnings it has shown."""
    if not any(kind.__module__ == "transformers.tokenization_utils_base" for kind in type(value).__mro__):
        return False
    return isinstance(vars(value).get("deprecation_warnings"), dict)


def tokens_of(native: Any, *, whole: bool) -> tuple[Any, ...]:
    """Returns everything that decides which tokens a native tokenizer makes, to compare it later.

    Args:
        native: The tokenizer.
        whole: Whether a long vocabulary counts as a whole; otherwise its size and 256 of its tokens do.
    """
    model, size = native.model, native.get_vocab_size(with_added_tokens=True)
    names = [name for name in dir(model) if not name.startswith("_")]
    options = [(name, value) for name in names if not callable(value := getattr(model, name))]
    if whole or size <= _WHOLE:
        vocabulary: Any = pickle.dumps(model)
    else:
        vocabulary = [native.id_to_token(i) for i in range(0, size, size // _SAMPLE)]
    parts = [pickle.dumps(getattr(native, name)) for name in _PARTS]
    return size, repr(native.get_added_tokens_decoder()), type(model), repr(options), vocabulary, parts


def settings_of(native: Any) -> tuple[Any, ...]:
    """Returns the settings that a tokenizer of `transformers` changes at each call."""
    return native.truncation, native.padding, native.encode_special_tokens


@contextmanager
def put_back(tokenizers: Iterable[Any]) -> Iterator[None]:
    """Restores, after a call, the settings and the notes of warnings that a tokenizer changes.

    Within the call all warnings count as shown. Otherwise each call would show them again, some with the
    length of a text.
    """
    with ExitStack() as stack:
        for one in tokenizers:
            stack.enter_context(_same_settings(one) if is_native(one) else _no_warnings(one))
        yield


@contextmanager
def _same_settings(native: Any) -> Iterator[None]:
    before = settings_of(native)
    try:
        yield
    finally:
        if settings_of(native) != before:
            truncation, padding, native.encode_special_tokens = before
            native.no_truncation() if truncation is None else native.enable_truncation(**truncation)
            native.no_padding() if padding is None else native.enable_padding(**padding)


@contextmanager
def _no_warnings(tokenizer: Any) -> Iterator[None]:
    notes = tokenizer.deprecation_warnings
    before = {key: notes.get(key, _MISSING) for key in _SHOWN}
    notes.update(dict.fromkeys(_SHOWN, True))
    try:
        yield
    finally:
        for key, shown in before.items():
            if shown is _MISSING:
                notes.pop(key, None)
            else:
                notes[key] = shown
