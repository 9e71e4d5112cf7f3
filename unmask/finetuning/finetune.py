"""From labelled files to a fine-tuned model: the assembly, in the order in which data flows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError
from unmask.files import file_sha256
from unmask.finetuning.files import kind_of, read_files, settings_of
from unmask.finetuning.folder import ResultFolder
from unmask.finetuning.forecast import forecast
from unmask.finetuning.metrics import needs_packages
from unmask.finetuning.reporter import FinetuneLog, FinetuneReporter
from unmask.finetuning.runs import Runs
from unmask.finetuning.settings import FinetuneSettings
from unmask.finetuning.start import load_pretrained, pooling_for
from unmask.hub.fetch import lasting_name
from unmask.model.find import find_model
from unmask.recipe.checkpoint import checkpoint_sha256
from unmask.tasks.model import TaskModel, load_fine_tuned
from unmask.tokens.loading import load_tokenizer


@dataclass(frozen=True)
class FineTuned:
    """A finished fine-tuning.

    Attributes:
        folder: Its folder.
        summary: What `summary.json` says.
    """

    folder: Path
    summary: dict[str, Any]

    @cached_property
    def model(self) -> TaskModel:
        """The best model."""
        return load_fine_tuned(self.folder / "model")


def finetune(  # noqa: PLR0913  (the options of the command line, each a name that users know)
    model: str | Path,
    *,
    task: str,
    train: str | Path,
    validation: str | Path,
    out: str | Path,
    test: str | Path | None = None,
    settings: Sequence[str] = (),
    resume: bool = False,
    overwrite: bool = False,
    reporter: FinetuneReporter | None = None,
) -> FineTuned:
    """Fine-tunes an encoder for a task and saves the best model as a transformers folder.

    Args:
        model: Folder of an encoder of unmask's, or of any that transformers reads and has a head of the task for; or
            its name on the hub.
        task: `classify`, `regress`, `pairs` (classes of pairs of texts), `tag` or `answer`.
        train: What it learns from: CSV, TSV, JSONL, Parquet, CoNLL, CoNLL-U, or SQuAD's JSON.
        validation: What the best model is told by.
        out: Folder of the result.
        test: What the best model is measured on besides.
        settings: `finetune.key=value` overrides of `FinetuneSettings`.
        resume: Go on with the result in `out`, begun with the same files and settings, behind the last seed whose
            training was over (from the beginning where there is none). More seeds may be asked for than before.
        overwrite: Replace the result in `out`.
        reporter: Told of the progress; None logs.

    Raises:
        UnmaskError: Whatever is wrong with files, settings or folders.
    """
    reporter = reporter or FinetuneLog()
    chosen = settings_of(settings)
    paths = _paths(train, validation, test)
    source = find_model(model)
    folder = ResultFolder(Path(out))
    folder.check(resume=resume, overwrite=overwrite, inputs=[*paths.values(), source])
    runs = _opened(source, task, paths, chosen, reporter)
    content = {
        "model": lasting_name(model, source),
        "task": task,
        **{name: str(path) for name, path in paths.items()},
        "sha256": {name: file_sha256(path) for name, path in paths.items()} | {"model": checkpoint_sha256(source)},
        "finetune": chosen.model_dump(),
    }
    finished = folder.go_on(content) if resume and folder.settings.is_file() else folder.begin(content)
    try:
        return FineTuned(folder.root, runs.run(folder, finished))
    except UnmaskError:
        folder.discard()
        raise


def forecast_finetune(
    model: str | Path,
    *,
    task: str,
    train: str | Path,
    validation: str | Path,
    test: str | Path | None = None,
    settings: Sequence[str] = (),
    reporter: FinetuneReporter | None = None,
) -> dict[str, Any]:
    """What `finetune` would do with the same arguments; nothing is written. See `unmask.finetuning.forecast`.

    Raises:
        UnmaskError: As `finetune`.
    """
    paths = _paths(train, validation, test)
    return forecast(_opened(find_model(model), task, paths, settings_of(settings), reporter or FinetuneLog()))


def _paths(train: str | Path, validation: str | Path, test: str | Path | None) -> dict[str, Path]:
    given = {"train": train, "validation": validation, "test": test}
    return {name: Path(path) for name, path in given.items() if path is not None}


def _opened(
    source: Path, task: str, paths: dict[str, Path], settings: FinetuneSettings, reporter: FinetuneReporter
) -> Runs:
    """Model and files, read and found to fit each other."""
    kind = kind_of(task)
    needs_packages()
    tokenizer = load_tokenizer(source)
    pretrained = load_pretrained(source, tokenizer, max_length=settings.max_length)
    pooling = pooling_for(pretrained, kind, settings.pooling)
    files, info = read_files(kind, paths, settings, reporter.note)
    return Runs(pretrained, tokenizer, files, replace(info, pooling=pooling), settings, reporter)
