"""unmask: from raw text to a working encoder.

Public names are loaded when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if "OMP_WAIT_POLICY" not in os.environ:
    # Threads of OpenMP that have nothing to do count before they sleep, to 300,000 where nobody says less, and keep a
    # core meanwhile: torch's from those of the compiled loops, which are others, and both from whoever else works on
    # the machine. It is read when torch and numba are loaded. Measured: docs/scaling.md.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

if TYPE_CHECKING:
    from unmask.commands.audit import MaskingAudit, audit
    from unmask.commands.compare import Comparison, Search, compare, tune
    from unmask.commands.embed import EmbeddedFile, embed
    from unmask.commands.embedder import Embedder, embedder
    from unmask.commands.evaluate import Evaluation, evaluate
    from unmask.commands.finetune import FineTuned, finetune
    from unmask.commands.lexicon import LexiconMade, lexicon
    from unmask.commands.masks import ShownMasks, masks
    from unmask.commands.prepare import Prepared, prepare
    from unmask.commands.pretrain import Run, pretrain
    from unmask.commands.recipe import recipes
    from unmask.commands.score import Scored, score
    from unmask.core.errors import (
        CorpusError,
        DataError,
        DivergedError,
        MemoryFullError,
        ModelError,
        RunError,
        SettingsError,
        TokenizerError,
        UnmaskError,
        UnsupportedError,
        WriteError,
    )
    from unmask.exporting.onnx import Export, export
    from unmask.exporting.verify import Verification, verify
    from unmask.masking.collator import MLM, MaskingCollator, count_tokens, evaluation_loss, token_losses
    from unmask.masking.masker import MaskedRows, Masker, lexicon_tables
    from unmask.search.evaluate import SearchEvaluation, evaluate_search
    from unmask.search.index import Hits, Index
    from unmask.tasks.fill import Filled
    from unmask.tasks.loaded_model import Model, fill, load
    from unmask.tasks.predict import Predictions, TaskModel, predict

    pass

__version__ = "0.1.0"
__all__ = [
    "MLM",
    "Comparison",
    "CorpusError",
    "DataError",
    "DivergedError",
    "EmbeddedFile",
    "Embedder",
    "Evaluation",
    "Export",
    "Filled",
    "FineTuned",
    "Hits",
    "Index",
    "LexiconMade",
    "MaskedRows",
    "Masker",
    "MaskingAudit",
    "MaskingCollator",
    "MemoryFullError",
    "Model",
    "ModelError",
    "Predictions",
    "Prepared",
    "PreparedPart",
    "Run",
    "RunError",
    "Scored",
    "Search",
    "SearchEvaluation",
    "SettingsError",
    "ShownMasks",
    "TaskModel",
    "TokenizerError",
    "UnmaskError",
    "UnsupportedError",
    "Verification",
    "WriteError",
    "audit",
    "compare",
    "count_tokens",
    "embed",
    "embedder",
    "evaluate",
    "evaluate_search",
    "evaluation_loss",
    "export",
    "fill",
    "finetune",
    "lexicon",
    "lexicon_tables",
    "load",
    "masks",
    "predict",
    "prepare",
    "pretrain",
    "recipes",
    "score",
    "token_losses",
    "tune",
    "verify",
]

_WHERE = {
    "CorpusError": "unmask.core.errors",
    "DataError": "unmask.core.errors",
    "DivergedError": "unmask.core.errors",
    "MemoryFullError": "unmask.core.errors",
    "ModelError": "unmask.core.errors",
    "RunError": "unmask.core.errors",
    "SettingsError": "unmask.core.errors",
    "TokenizerError": "unmask.core.errors",
    "UnmaskError": "unmask.core.errors",
    "UnsupportedError": "unmask.core.errors",
    "WriteError": "unmask.core.errors",
    "Comparison": "unmask.commands.compare",
    "EmbeddedFile": "unmask.commands.embed",
    "Embedder": "unmask.commands.embedder",
    "Evaluation": "unmask.commands.evaluate",
    "Export": "unmask.exporting.onnx",
    "Filled": "unmask.tasks.fill",
    "FineTuned": "unmask.commands.finetune",
    "Hits": "unmask.search.index",
    "Index": "unmask.search.index",
    "SearchEvaluation": "unmask.search.evaluate",
    "TaskModel": "unmask.tasks.predict",
    "MLM": "unmask.masking.collator",
    "MaskedRows": "unmask.masking.masker",
    "Masker": "unmask.masking.masker",
    "MaskingAudit": "unmask.commands.audit",
    "MaskingCollator": "unmask.masking.collator",
    "Model": "unmask.tasks.loaded_model",
    "LexiconMade": "unmask.commands.lexicon",
    "Predictions": "unmask.tasks.predict",
    "Prepared": "unmask.commands.prepare",
    "PreparedPart": "unmask.commands.prepare",
    "Run": "unmask.commands.pretrain",
    "Scored": "unmask.commands.score",
    "Search": "unmask.commands.compare",
    "ShownMasks": "unmask.commands.masks",
    "Verification": "unmask.exporting.verify",
    "audit": "unmask.commands.audit",
    "compare": "unmask.commands.compare",
    "count_tokens": "unmask.masking.collator",
    "embed": "unmask.commands.embed",
    "embedder": "unmask.commands.embedder",
    "evaluate": "unmask.commands.evaluate",
    "evaluate_search": "unmask.search.evaluate",
    "evaluation_loss": "unmask.masking.collator",
    "export": "unmask.exporting.onnx",
    "fill": "unmask.tasks.loaded_model",
    "finetune": "unmask.commands.finetune",
    "lexicon": "unmask.commands.lexicon",
    "lexicon_tables": "unmask.masking.masker",
    "load": "unmask.tasks.loaded_model",
    "masks": "unmask.commands.masks",
    "predict": "unmask.tasks.predict",
    "prepare": "unmask.commands.prepare",
    "pretrain": "unmask.commands.pretrain",
    "recipes": "unmask.commands.recipe",
    "score": "unmask.commands.score",
    "token_losses": "unmask.masking.collator",
    "tune": "unmask.commands.compare",
    "verify": "unmask.exporting.verify",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'unmask' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
