"""What commands share: options, and what their texts stand for.

Heavy modules are imported within a command, so that `--help` answers at once.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from unmask.model.pooling import POOLINGS


class Precision(Enum):
    """Names of `unmask.tasks.loaded_model.Precision`."""

    float32 = "float32"
    bf16 = "bf16"
    auto = "auto"


class Similarity(Enum):
    """Names of `unmask.search.encoder.Similarity`, which would load torch."""

    cosine = "cosine"
    dot = "dot"


class _DocumentUnits(Enum):
    """Names of `unmask.data.settings.DocumentUnit`, and `auto`."""

    auto = "auto"
    line = "line"
    block = "block"
    file = "file"


Documents = _DocumentUnits


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
VocabSize = Annotated[int | None, typer.Option(help="Of the trained tokenizer. \\[default: fits the text]")]
StrictFlag = Annotated[
    bool, typer.Option("--strict", help="Refuse a model whose files are not what its checksums.json was written for.")
]
DryRunFlag = Annotated[
    bool, typer.Option("--dry-run", help="Only say what would happen: text, parameters, memory, time.")
]

# What commands share that make vectors.
PrecisionOption = Annotated[
    Precision, typer.Option(help="bf16 is several times faster on machines made for it; auto takes it there.")
]
PoolingOption = Annotated[
    str | None,
    typer.Option(
        metavar="|".join(POOLINGS),
        help="How a vector is made of a text's tokens. \\[default: what the model's folder says]",
    ),
]
ColumnOption = Annotated[
    str | None,
    typer.Option(help="Where a table's text stands: a column, doc.text within one, or a,b. \\[default: found]"),
]
TitleColumnOption = Annotated[
    str | None, typer.Option(help="Where a table's titles stand. \\[default: title, if it is there]")
]
QueryPromptOption = Annotated[
    str | None, typer.Option(help="What stands before each query. \\[default: what the model's folder says]")
]
DocumentPromptOption = Annotated[
    str | None, typer.Option(help="What stands before each passage. \\[default: what the model's folder says]")
]
PassageTokensOption = Annotated[
    int | None,
    typer.Option(
        help="Tokens of a passage of a long document; more than the model takes are seen in windows. \\[default: what "
        "it takes, at most 512]"
    ),
]
SimilarityOption = Annotated[
    Similarity | None, typer.Option(help="\\[default: what the model's folder says, else cosine; dot of sparse ones]")
]


def text_of(text: str) -> str:
    """A text that was given, or the whole of standard input for `-`.

    Raises:
        SettingsError: Standard input is a terminal, closed, empty, or not UTF-8.
        CorpusError: It cannot be read.
    """
    from unmask.core.errors import SettingsError
    from unmask.data.sources import from_stdin

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
    from unmask.core.errors import SettingsError

    try:
        return tuple(float(rate) for rate in text.split(","))
    except ValueError as error:
        raise SettingsError(f"--rates {text}: expected numbers with commas between them, such as 0.15,0.3") from error
