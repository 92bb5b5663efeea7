"""Runs the client of a package registry, and quotes its error if it fails."""

import errno
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

_MINUTES = 10


class MissingClientError(RuntimeError):
    """The program is not installed."""


def run(command: Sequence[str], work: Path, package: str, install: str) -> None:
    """Runs a command in a temporary folder, which also holds the command's own temporary files.

    Args:
        command: The program and its arguments.
        work: The folder.
        package: Name of the fetched package, for error messages.
        install: How to install the program, for error messages.

    Raises:
        MissingClientError: If the program is not installed.
        RuntimeError: If it takes too long or fails.
        OSError: If the disk is full.
    """
    client = Path(command[0]).name if command[1:2] != ["-m"] else command[2]
    temporary = work / "tmp"
    temporary.mkdir(exist_ok=True)
    try:
        done = subprocess.run(
            command,
            cwd=work,
            env={**os.environ, "TMPDIR": str(temporary)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60 * _MINUTES,
            check=False,
        )
    except (FileNotFoundError, PermissionError) as error:
        raise MissingClientError(f"{client} is needed to fetch {package}: {install}.") from error
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(
            f"{client} did not fetch {package} within {_MINUTES} minutes. Try again."
        ) from error
    if done.returncode and f"No module named {client}" in done.stderr:
        raise MissingClientError(f"{client} is needed to fetch {package}: {install}.")
    if done.returncode and ("ENOSPC" in done.stderr or "No space left" in done.stderr):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if done.returncode:
        raise RuntimeError(f"{client} could not fetch {package}: {_reason(done.stderr)}")


def _reason(errors: str) -> str:
    """Returns the first lines that are marked as errors, or else the last line."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()] or ["no message"]
    marked = [line for line in lines if line.startswith(("npm error", "npm ERR", "ERROR:", "E:"))]
    return "; ".join(marked[:2] or lines[-1:])


def the_archive(work: Path, pattern: str, package: str) -> Path:
    """Returns the one file that the client put into the folder."""
    archives = list(work.glob(pattern))
    if len(archives) != 1:
        raise RuntimeError(f"Expected one file {pattern} of {package}, but {len(archives)} came. Try again.")
    return archives[0]
