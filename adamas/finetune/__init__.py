"""Fine-tuning of a part of a model: which parameters train, and which rows of its weights.

Clipping and noise cover the trainable parameters only, so a private step on fewer of them has less noise in
total. The selections set `requires_grad` and nothing else; SPARTA finds the rows that are worth training with
private releases.

    select, head, bitfit, last_block                     by name
    row_weights, row_scores, top_rows, keep_rows, merge_rows   by row
    sparta                                               the whole recipe, within one run
"""

from adamas.finetune.rows import KeptRows, keep_rows, merge_rows, row_weights
from adamas.finetune.selections import Selection, bitfit, head, last_block, select
from adamas.finetune.sparta import row_scores, sparta, top_rows

__all__ = [
    "KeptRows",
    "Selection",
    "bitfit",
    "head",
    "keep_rows",
    "last_block",
    "merge_rows",
    "row_scores",
    "row_weights",
    "select",
    "sparta",
    "top_rows",
]
