"""What `make docs` adds to the pages: options of the commands, keys of `--json`, and the pages at the root.

mkdocs calls the functions `on_...` (its hooks). A page has a mark such as `<!-- commands -->` where a table is put, so
that nothing here is written down twice.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from posixpath import relpath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.contract.test_commands import COMMANDS as ASKED  # noqa: E402
from unmask.commands.cli import CHANNELS, COMMANDS, option_of, read_parameters, read_summary  # noqa: E402

FROM_ROOT = {f"{name.upper()}.md": f"explanation/{name}.md" for name in ("architecture", "contributing", "changelog")}


def on_files(files: Files, config: Any) -> Files:
    for source, page in FROM_ROOT.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=re.sub(r"\]\((?!\w+:|#)", "](../../", text)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    here = Path(page.file.src_uri).parent.as_posix()
    for source, target in FROM_ROOT.items():
        markdown = markdown.replace(f"(../../{source}", f"({relpath(target, here)}")
    markdown = markdown.replace("(../../docs/", "(../")
    return markdown.replace("<!-- commands -->", commands()).replace("<!-- keys -->", keys())


def commands() -> str:
    lines = []
    for name, command in COMMANDS.items():
        lines += [f"## {name}", read_summary(command.function), f"```\nunmask {name} {command.example}\n```"]
        rows = ["| option | values | meaning |", "| --- | --- | --- |"]
        for each in read_parameters(command.function).values():
            if each.name in CHANNELS:
                continue
            option = each.name.upper() if each.positional else option_of(each.name)
            kind = {"str": "text", "int": "whole number", "float": "number", "bool": "flag"}[each.kind]
            values = ", ".join(f"`{choice}`" for choice in each.choices) or kind
            default = "required" if each.required else f"default `{each.default}`" if each.default else ""
            rows.append(f"| `{option}` | {values}{'; ' * bool(default)}{default} | {each.help} |".replace("..", "…"))
        lines.append("\n".join(rows))
    return "\n\n".join(lines)


def keys() -> str:
    rows = ["| command | keys |", "| --- | --- |"]
    rows += [f"| `{name}` | {', '.join(f'`{key}`' for key in names.split())} |" for name, (_, names) in ASKED.items()]
    return "\n".join(rows)
