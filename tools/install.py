"""Creates a virtual environment and installs packages into it, with progress every second.

    python3 tools/install.py VENV [PIP ARGUMENTS]

pip prints nothing for half a minute while it unpacks the downloaded packages. This script parses
pip's output, and during unpacking counts the packages in the environment. Modules are not compiled
to bytecode: a run imports a few hundred of torch's thousands of modules, and Python compiles those
on import.
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
# The first words of pip's lines, and what is printed instead.
TOLD = {
    "Collecting": "looking for",
    "Downloading": "downloading",
    "Processing": "reading",
    "Obtaining": "reading",
    "Building": "building",
    "Preparing": "preparing",
}


class Progress:
    """The current step of pip.

    Attributes:
        doing: description of the step.
        wanted: number of packages to install; 0 until pip has printed them.
    """

    def __init__(self) -> None:
        self.doing, self.wanted = "starting pip", 0

    def read(self, line: str) -> None:
        """Updates the progress from one line of pip's output."""
        first, _, rest = line.strip().partition(" ")
        if first == "Installing" and rest.startswith("collected packages:"):
            self.wanted = rest.count(",") + 1
        elif first in TOLD and rest:
            self.doing = f"{TOLD[first]} {rest.split()[0].rpartition('/')[2]}"

    def text(self, arrived: Sequence[str]) -> str:
        """Returns the progress as text.

        Args:
            arrived: names of the packages installed so far, in the order of installation.
        """
        if not self.wanted:
            return self.doing
        last = f", last {arrived[-1]}" if arrived else ""
        return f"unpacking {self.wanted} packages: {len(arrived)} are there{last}"


def installed(venv: Path, since: float) -> list[str]:
    """Returns the packages of an environment that are newer than a time, oldest first."""
    found = []
    for path in venv.glob("lib/python*/site-packages/*.dist-info"):
        changed = path.stat().st_mtime
        if changed >= since:
            found.append((changed, path.name.partition("-")[0]))
    return [name for _, name in sorted(found)]


def follow(command: Sequence[str], venv: Path, out: TextIO) -> int:
    """Runs pip and prints its progress every second; returns its exit status.

    If pip fails, the end of its output is printed.
    """
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
    """Prints text: over the last line on a terminal, on a new line elsewhere."""
    out.write(f"\r{text[:WIDTH]:<{WIDTH}}" if out.isatty() else f"{text}\n")
    out.flush()


def main() -> int:
    """Creates the environment if it does not exist, and installs."""
    venv, python = Path(sys.argv[1]), Path(sys.argv[1]) / "bin" / "python"
    if not python.exists():
        say(f"making {venv} with Python {sys.version.split()[0]}", sys.stdout)
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--no-compile"]
    return follow([*pip, "--progress-bar", "off", *sys.argv[2:]], venv, sys.stdout)


if __name__ == "__main__":
    sys.exit(main())
