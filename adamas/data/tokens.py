"""Converts texts to token ids of MiniLM's vocabulary, and keeps them in the cache.

References:
    Chi Sun, Xipeng Qiu, Yige Xu, Xuanjing Huang. "How to Fine-Tune BERT for Text Classification?" CCL 2019.
    arXiv:1905.05583.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from adamas import _validate
from adamas._storage.archive import write_tensors
from adamas.data.cache import cache_folder, write_whole
from adamas.data.extras import optional
from adamas.data.minilm import TOKENIZER_SHA256, minilm_files

KEEPS = ("start", "ends")
"""Ways to cut a text that is too long."""


def token_ids(texts: Sequence[str], source: str, length: int = 128, keep: str = "start") -> Tensor:
    """Returns ids (N, length) as int64: `[CLS]`, the text in WordPiece, `[SEP]`, and 0 up to the end.

    Args:
        texts: The texts.
        source: Identifies the texts, by the checksum of their file and how they were chosen. It is part of
            the cache key, with the vocabulary, `length` and `keep`.
        length: Tokens per text; shorter texts are padded with 0.
        keep: How a longer text is cut: keep its "start", or equal parts of both "ends" (Sun et al., 2019).
    """
    _validate.one_of(KEEPS, keep=keep)
    _validate.count(length=length)
    if length < 4:
        raise ValueError(f"Expected length={length!r} of at least 4 tokens.")
    key = hashlib.sha256(f"{source} {TOKENIZER_SHA256} {length} {keep}".encode()).hexdigest()
    file = cache_folder() / f"tokens-{key[:32]}.safetensors"
    ids = _read(file, (len(texts), length))
    if ids is None:
        ids = _tokenize(texts, length, keep)
        content = {"ids": ids}
        write_whole(file, lambda path: write_tensors(path, content, {"sha256": _digest(content["ids"])}))
    return ids.long()


def _tokenize(texts: Sequence[str], length: int, keep: str) -> Tensor:
    tokenizer = optional("tokenizers", "tokenizers").Tokenizer.from_file(
        str(minilm_files() / "tokenizer.json")
    )
    tokenizer.no_padding()
    if keep == "start":
        tokenizer.enable_truncation(length)
    else:
        tokenizer.no_truncation()
    result = np.zeros((len(texts), length), dtype=np.int32)
    for row, encoding in zip(result, tokenizer.encode_batch(list(texts)), strict=True):
        ids = encoding.ids
        if len(ids) > length:
            ids = [*ids[: length // 2], *ids[length // 2 - length :]]
        row[: len(ids)] = ids
    return torch.from_numpy(result)


def _digest(ids: Tensor) -> str:
    return hashlib.sha256(ids.numpy().data).hexdigest()


def _read(file: Path, shape: tuple[int, int]) -> Tensor | None:
    """Reads ids from a file; None if it is missing or damaged, since they can be computed again."""
    try:
        with safe_open(file, framework="pt") as stored:
            ids: Tensor = stored.get_tensor("ids")
            intact = (stored.metadata() or {}).get("sha256") == _digest(ids)
    except (OSError, SafetensorError):
        return None
    return ids if intact and ids.shape == shape else None
