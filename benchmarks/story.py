r"""The whole way from raw text to a finished model: commands, run as they stand, with what they print.

    python benchmarks/story.py DATA [--work runs/story] [--page docs/results.md]

The commands are read from docs/results.md ("The whole way"). They run in --work, where DATA's folders (`novels`,
`cpp_docs`, `blimp`, `sst2`, `wnut17`) are linked. What a command printed lies in --work/printed, and a command that is
there already is not run again, so that the story goes on after the last command that ended. The page shows each command
with its time and its output without the lines of a progress, of long ones the first and the last lines.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from tables import write_table

PAGE = Path(__file__).parents[1] / "docs" / "results.md"
TITLE = "## The whole way"
SHOWN = 30  # lines of a command's output
PROGRESS = re.compile(r"^[^:]* \d+%: .*\bleft$|^(reading|tokenizing)\b.*: [\d.]+ MB, ")


class Told(NamedTuple):
    """A command of the story and what came out."""

    command: str
    seconds: float
    printed: str


def commands() -> list[str]:
    """The section's first block, with continued lines joined."""
    section = PAGE.read_text(encoding="utf-8").partition(f"{TITLE}\n")[2]
    block = re.search(r"^```\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    if block is None:
        sys.exit(f"{PAGE} has no commands under {TITLE!r}")
    joined = re.sub(r" *\\\n +", " ", block[1])
    return [line for line in joined.splitlines() if line]


def tell(command: str, kept: Path, work: Path) -> Told:
    """Runs a command, or reads what it printed when it was run."""
    if kept.is_file() and (told := Told(*json.loads(kept.read_text(encoding="utf-8")))).command == command:
        return told
    print(f"$ {command}", file=sys.stderr, flush=True)
    if (out := re.search(r"--out (\S+)", command)) is not None:  # of one that was stopped; its time would be wrong
        target = work / out[1]
        shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
    begin = time.perf_counter()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "COLUMNS": "110"}
    asked = ["sh", "-c", f"exec 2>&1; {command}"]
    try:
        done = subprocess.run(asked, check=True, stdout=subprocess.PIPE, text=True, cwd=work, env=environment)
    except subprocess.CalledProcessError as error:
        sys.exit(f"the story ends here: exit code {error.returncode} of {command}\n{error.stdout}")
    told = Told(command, time.perf_counter() - begin, done.stdout)
    kept.write_text(json.dumps(told), encoding="utf-8")
    return told


def shown(told: Told, work: Path) -> list[str]:
    """A command as the page shows it, files named as in --work."""
    printed = told.printed.replace(f"{work.resolve()}/", "").strip("\n")
    lines = [line.rstrip() for line in printed.splitlines() if not PROGRESS.match(line)]
    if len(lines) > SHOWN:
        lines = [*lines[: SHOWN // 2], f"... {len(lines) - SHOWN} lines ...", *lines[-SHOWN // 2 :]]
    minutes, seconds = divmod(round(told.seconds), 60)
    return ["", f"{minutes} min {seconds} s:", "", "```", f"$ {told.command}", *lines, "```"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of the texts and tasks")
    parser.add_argument("--work", type=Path, default=Path("runs/story"))
    parser.add_argument("--page", type=Path, help="page whose part `story` is rewritten")
    asked = parser.parse_args()
    (asked.work / "printed").mkdir(parents=True, exist_ok=True)
    for folder in asked.data.resolve().iterdir():
        link = asked.work / folder.name
        if folder.is_dir() and not link.exists():
            link.symlink_to(folder)
    story = [
        tell(command, asked.work / "printed" / f"{number:02}.json", asked.work)
        for number, command in enumerate(commands())
    ]
    lines = [f"{sum(told.seconds for told in story) / 60:.0f} minutes in all."]
    for told in story:
        lines += shown(told, asked.work)
    print("\n".join(lines))
    if asked.page:
        write_table(asked.page, "story", lines)


if __name__ == "__main__":
    main()
