"""What commands share: options, and what their texts stand for.

Heavy modules are imported within a command, here and in `commands/`, so that `--help` answers at once.
"""

from __future__ import annotations

from typing import Annotated

import typer

ModelName = Annotated[
    str, typer.Argument(help="Folder of a model, such as RUN/model, or its name on the hub, owner/name.")
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change one setting of the recipe; may be repeated."),
]
TokenizerKind = Annotated[
    str | None,
    typer.Option(help="What is trained: wordpiece, bpe (byte-level), unigram or char. \\[default: wordpiece]"),
]
TokenizerName = Annotated[
    str | None,
    typer.Option(help="tokenizer.json, vocab.txt, their folder, or a name on the hub. \\[default: trains one]"),
]
StrictFlag = Annotated[
    bool, typer.Option("--strict", help="Refuse a model whose files are not what its checksums.json was written for.")
]
DryRunFlag = Annotated[
    bool, typer.Option("--dry-run", help="Only say what would happen: text, parameters, memory, time.")
]


def text_of(text: str) -> str:
    """A text that was given, or the whole of standard input for `-`.

    Raises:
        SettingsError: Standard input is a terminal, closed, empty, or not UTF-8.
        CorpusError: It cannot be read.
    """
    from unmask.errors import SettingsError
    from unmask.text.pipes import from_stdin

    if text != "-":
        return text
    try:
        with from_stdin() as stream:
            found = stream.read().decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise SettingsError(f"standard input is not UTF-8 (byte {error.start}); convert it first") from error
    if not found.strip():
        raise SettingsError("standard input is empty")
    return found


def rates_of(text: str) -> tuple[float, ...]:
    """Numbers with commas between them.

    Raises:
        SettingsError: They are none.
    """
    from unmask.errors import SettingsError

    try:
        return tuple(float(rate) for rate in text.split(","))
    except ValueError as error:
        raise SettingsError(f"--rates {text}: expected numbers with commas between them, such as 0.15,0.3") from error
