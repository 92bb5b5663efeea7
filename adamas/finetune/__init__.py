"""Fine-tuning a part of a model: some of its parameters, or some rows of its weights.

Clipping and noise cover only the trainable parameters, so a step on fewer parameters adds less noise in
total. The selections set `requires_grad` and nothing else; SPARTA chooses rows by private releases.

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
