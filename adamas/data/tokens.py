"""Texts as token ids of MiniLM's vocabulary, kept in the cache once they are made."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from adamas.data.cache import cache_folder, write_whole
from adamas.data.extras import optional
from adamas.data.minilm import TOKENIZER_SHA256, minilm_files

LENGTH = 128
"""Tokens of a text; longer texts are cut, shorter ones padded with 0."""


def token_ids(texts: Sequence[str], source: str) -> Tensor:
    """Ids (N, 128) as int64: `[CLS]`, the text in WordPiece, `[SEP]`, and 0 up to the end.

    Args:
        texts: The texts.
        source: Says which texts these are, by the checksum of their file and how they were chosen. The ids
            are kept in the cache under this, the vocabulary and the length.
    """
    key = hashlib.sha256(f"{source} {TOKENIZER_SHA256} {LENGTH}".encode()).hexdigest()
    file = cache_folder() / f"tokens-{key[:32]}.safetensors"
    ids = _read(file, len(texts))
    if ids is None:
        ids = _tokenize(texts)
        content = {"ids": ids}
        write_whole(file, lambda path: save_file(content, path, metadata={"sha256": _digest(content["ids"])}))
    return ids.long()


def _tokenize(texts: Sequence[str]) -> Tensor:
    tokenizer = optional("tokenizers", "tokenizers").Tokenizer.from_file(
        str(minilm_files() / "tokenizer.json")
    )
    tokenizer.enable_truncation(LENGTH)
    tokenizer.enable_padding(length=LENGTH, pad_id=0)
    ids = [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]
    return torch.from_numpy(np.array(ids, dtype=np.int32))


def _digest(ids: Tensor) -> str:
    return hashlib.sha256(ids.numpy().data).hexdigest()


def _read(file: Path, count: int) -> Tensor | None:
    """The ids in a file; None if there is none or it is damaged, for they can be made again."""
    try:
        with safe_open(file, framework="pt") as stored:
            ids: Tensor = stored.get_tensor("ids")
            intact = (stored.metadata() or {}).get("sha256") == _digest(ids)
    except (OSError, SafetensorError):
        return None
    return ids if intact and ids.shape == (count, LENGTH) else None
