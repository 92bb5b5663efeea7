"""Put modules where `adamas check` and `adamas audit` look for them, as a user would."""

import contextlib
import sys
import textwrap


@contextlib.contextmanager
def user_modules(folder, monkeypatch, **sources):
    """Writes modules to `folder` and makes it the working directory; at the end, forgets the imports."""
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(source))
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield folder
    for name in sources:
        sys.modules.pop(name, None)
