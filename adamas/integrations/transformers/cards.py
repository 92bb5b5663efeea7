"""Adds the guarantee of a training to the model card that a trainer writes."""

from pathlib import Path

from adamas.run import PrivateRun

HEADING = "## Privacy"


def add_privacy(card: Path, run: PrivateRun) -> None:
    """Adds a section to a card, once; does nothing if the trainer wrote none.

    Args:
        card: The card, a file in Markdown.
        run: The run behind the model.
    """
    if not card.is_file():
        return
    written = card.read_text(encoding="utf-8").partition(f"\n{HEADING}\n")[0].rstrip()
    rule = type(run.rule).__name__
    section = (
        f"{HEADING}\n\n{run.privacy_statement()}\n\nThe weights were updated by `{rule}`, in the place of "
        f"any optimizer that is named above. The gradient of each record was clipped to {run.clip_norm:g}.\n"
    )
    card.write_text(f"{written}\n\n{section}", encoding="utf-8")
