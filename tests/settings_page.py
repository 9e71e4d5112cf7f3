"""The tables of docs/reference/settings.md, made from the reference. `python -m tests.settings_page` writes them."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import unmask

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "settings.md"


def tables() -> str:
    lines: list[str] = []
    for section, settings in groupby(unmask.settings().settings, lambda each: each.name.partition(".")[0]):
        lines += [f"\n## {section}\n", "| setting | values | default | meaning |", "| --- | --- | --- | --- |"]
        for each in settings:
            kinds = f" (of kind {' or '.join(f'`{kind}`' for kind in each.kinds)})" if each.kinds else ""
            default = "required" if each.default is None else f"`{each.default}`" if each.default else ""
            choices = [f"`{choice}`" for choice in each.choices]
            values = ", ".join([*choices, *[f"{each.type} {each.range}".strip()] * bool(each.type)])
            lines.append(f"| `{each.name}`{kinds} | {values} | {default} | {each.meaning} |")
    return "\n".join(lines).lstrip()


def written(text: str) -> str:
    """The page with the tables made anew between their marks."""
    begin, end = "<!-- settings -->\n", "\n<!-- end settings -->"
    before, rest = text.split(begin)
    return before + begin + tables() + end + rest.split(end)[1]


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
