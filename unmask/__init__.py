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
    from unmask.comparing.verdicts import Comparison, Search, compare, tune
    from unmask.embedding.embedder_making import Embedder, embedder
    from unmask.errors import (
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
    from unmask.exporting.onnx_export import Export, export
    from unmask.exporting.verification import Verification, verify
    from unmask.finetuning.finetuning import FineTuned, finetune
    from unmask.masking.collator import MaskingCollator
    from unmask.masking.features import count_tokens
    from unmask.masking.masker import MaskedRows, Masker
    from unmask.masking.mlm import MLM
    from unmask.masking.stored_tables import lexicon_tables
    from unmask.masking.trainer_loss import evaluation_loss, token_losses
    from unmask.pretraining.auditing import MaskingAudit, audit
    from unmask.pretraining.lexicons import LexiconMade, lexicon
    from unmask.pretraining.preparing import Prepared, prepare
    from unmask.pretraining.pretraining import Run, pretrain
    from unmask.pretraining.shown_masks import ShownMasks, masks
    from unmask.recipe.recipe import recipes
    from unmask.searching.search_evaluation import SearchEvaluation, evaluate_search
    from unmask.searching.search_index import Hits, Index
    from unmask.tasks.predicting import Predictions, predict
    from unmask.tasks.task_model import TaskModel
    from unmask.using.embedded_file import EmbeddedFile, embed
    from unmask.using.evaluation import Evaluation, evaluate
    from unmask.using.filled import Filled
    from unmask.using.loaded_model import Model, fill, load
    from unmask.using.scoring import Scored, score

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
    "CorpusError": "unmask.errors",
    "DataError": "unmask.errors",
    "DivergedError": "unmask.errors",
    "MemoryFullError": "unmask.errors",
    "ModelError": "unmask.errors",
    "RunError": "unmask.errors",
    "SettingsError": "unmask.errors",
    "TokenizerError": "unmask.errors",
    "UnmaskError": "unmask.errors",
    "UnsupportedError": "unmask.errors",
    "WriteError": "unmask.errors",
    "Comparison": "unmask.comparing.verdicts",
    "EmbeddedFile": "unmask.using.embedded_file",
    "Embedder": "unmask.embedding.embedder_making",
    "Evaluation": "unmask.using.evaluation",
    "Export": "unmask.exporting.onnx_export",
    "Filled": "unmask.using.filled",
    "FineTuned": "unmask.finetuning.finetuning",
    "Hits": "unmask.searching.search_index",
    "Index": "unmask.searching.search_index",
    "SearchEvaluation": "unmask.searching.search_evaluation",
    "TaskModel": "unmask.tasks.task_model",
    "MLM": "unmask.masking.mlm",
    "MaskedRows": "unmask.masking.masker",
    "Masker": "unmask.masking.masker",
    "MaskingAudit": "unmask.pretraining.auditing",
    "MaskingCollator": "unmask.masking.collator",
    "Model": "unmask.using.loaded_model",
    "LexiconMade": "unmask.pretraining.lexicons",
    "Predictions": "unmask.tasks.predicting",
    "Prepared": "unmask.pretraining.preparing",
    "PreparedPart": "unmask.pretraining.preparing",
    "Run": "unmask.pretraining.pretraining",
    "Scored": "unmask.using.scoring",
    "Search": "unmask.comparing.verdicts",
    "ShownMasks": "unmask.pretraining.shown_masks",
    "Verification": "unmask.exporting.verification",
    "audit": "unmask.pretraining.auditing",
    "compare": "unmask.comparing.verdicts",
    "count_tokens": "unmask.masking.features",
    "embed": "unmask.using.embedded_file",
    "embedder": "unmask.embedding.embedder_making",
    "evaluate": "unmask.using.evaluation",
    "evaluate_search": "unmask.searching.search_evaluation",
    "evaluation_loss": "unmask.masking.trainer_loss",
    "export": "unmask.exporting.onnx_export",
    "fill": "unmask.using.loaded_model",
    "finetune": "unmask.finetuning.finetuning",
    "lexicon": "unmask.pretraining.lexicons",
    "lexicon_tables": "unmask.masking.stored_tables",
    "load": "unmask.using.loaded_model",
    "masks": "unmask.pretraining.shown_masks",
    "predict": "unmask.tasks.predicting",
    "prepare": "unmask.pretraining.preparing",
    "pretrain": "unmask.pretraining.pretraining",
    "recipes": "unmask.recipe.recipe",
    "score": "unmask.using.scoring",
    "token_losses": "unmask.masking.trainer_loss",
    "tune": "unmask.comparing.verdicts",
    "verify": "unmask.exporting.verification",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'unmask' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
