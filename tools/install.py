"""Makes a virtual environment and installs into it, and says every second what is being done.

    python3 tools/install.py VENV [PIP ARGUMENTS]

pip is silent for half a minute while it unpacks what it fetched. Here its own lines are read, and
while it unpacks, what has arrived in the environment is counted. Modules are not compiled to
bytecode: of torch's thousands a run imports some hundreds, and Python compiles what it imports.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

EVERY_S = 1.0
WIDTH = 88
# What pip's lines begin with, and what is said instead.
TOLD = {
    "Collecting": "looking for",
    "Downloading": "downloading",
    "Processing": "reading",
    "Obtaining": "reading",
    "Building": "building",
    "Preparing": "preparing",
}


class Progress:
    """What pip is at.

    Attributes:
        doing: in words.
        wanted: how many packages it installs; 0 before it says so.
    """

    def __init__(self) -> None:
        self.doing, self.wanted = "starting pip", 0

    def read(self, line: str) -> None:
        """One of pip's lines."""
        first, _, rest = line.strip().partition(" ")
        if first == "Installing" and rest.startswith("collected packages:"):
            self.wanted = rest.count(",") + 1
        elif first in TOLD and rest:
            self.doing = f"{TOLD[first]} {rest.split()[0].rpartition('/')[2]}"

    def text(self, arrived: Sequence[str]) -> str:
        """What is being done, given the names of the packages that are installed so far, the last
        one last."""
        if not self.wanted:
            return self.doing
        last = f", last {arrived[-1]}" if arrived else ""
        return f"unpacking {self.wanted} packages: {len(arrived)} are there{last}"


def installed(venv: Path, since: float) -> list[str]:
    """Packages of an environment that came after a time, the last one last."""
    found = []
    for path in venv.glob("lib/python*/site-packages/*.dist-info"):
        changed = path.stat().st_mtime
        if changed >= since:
            found.append((changed, path.name.partition("-")[0]))
    return [name for _, name in sorted(found)]


def follow(command: Sequence[str], venv: Path, out: TextIO) -> int:
    """Runs pip, saying every second what it is at; its exit status. Its output, where it fails."""
    progress, lines, began = Progress(), [], time.time()
    pip = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def read() -> None:
        for line in pip.stdout or ():
            lines.append(line)
            progress.read(line)

    reader = threading.Thread(target=read)
    reader.start()
    while pip.poll() is None:
        say(f"{time.time() - began:4.0f} s  {progress.text(installed(venv, began))}", out)
        time.sleep(EVERY_S)
    reader.join()
    if pip.returncode:
        out.write("\n" + "".join(lines[-40:]))
    say(f"{time.time() - began:4.0f} s  {len(installed(venv, began))} packages installed", out)
    out.write("\n" if out.isatty() else "")
    return pip.returncode


def say(text: str, out: TextIO) -> None:
    """Over the last line on a terminal, below it elsewhere."""
    out.write(f"\r{text[:WIDTH]:<{WIDTH}}" if out.isatty() else f"{text}\n")
    out.flush()


def main() -> int:
    """Makes the environment where it is not there, and installs."""
    venv, python = Path(sys.argv[1]), Path(sys.argv[1]) / "bin" / "python"
    if not python.exists():
        say(f"making {venv} with Python {sys.version.split()[0]}", sys.stdout)
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--no-compile"]
    return follow([*pip, "--progress-bar", "off", *sys.argv[2:]], venv, sys.stdout)


if __name__ == "__main__":
    sys.exit(main())
