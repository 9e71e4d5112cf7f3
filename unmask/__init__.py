"""unmask: from raw text to a working encoder.

Public names are loaded when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unmask.collating.collator import MaskingCollator
    from unmask.collating.counts import count_tokens
    from unmask.comparing.verdicts import Comparison, Search, compare, tune
    from unmask.exporting.export import Export, export
    from unmask.exporting.verify import Verification, verify
    from unmask.finetuning.finetune import FineTuned, finetune
    from unmask.inference.embed_file import EmbeddedFile, embed
    from unmask.inference.evaluate import Evaluation, evaluate
    from unmask.inference.filled import Filled
    from unmask.inference.model import Model, fill, load
    from unmask.inference.score import Scored, score
    from unmask.masking.engine import MaskedRows, Masker
    from unmask.masking.mlm import MLM
    from unmask.pretraining.auditing import MaskingAudit, audit
    from unmask.pretraining.lexicon import LexiconMade, lexicon, lexicon_tables
    from unmask.pretraining.preparing import Prepared, prepare
    from unmask.pretraining.pretrain import Run, pretrain
    from unmask.pretraining.shown_masks import ShownMasks, masks
    from unmask.recipe.recipe import recipes
    from unmask.tasks.predicting import Predictions, predict
    from unmask.tasks.task_model import TaskModel

__version__ = "0.1.0"
__all__ = [
    "MLM",
    "Comparison",
    "EmbeddedFile",
    "Evaluation",
    "Export",
    "Filled",
    "FineTuned",
    "LexiconMade",
    "MaskedRows",
    "Masker",
    "MaskingAudit",
    "MaskingCollator",
    "Model",
    "Predictions",
    "Prepared",
    "Run",
    "Scored",
    "Search",
    "ShownMasks",
    "TaskModel",
    "Verification",
    "audit",
    "compare",
    "count_tokens",
    "embed",
    "evaluate",
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
    "tune",
    "verify",
]

_WHERE = {
    "Comparison": "unmask.comparing.verdicts",
    "EmbeddedFile": "unmask.inference.embed_file",
    "Evaluation": "unmask.inference.evaluate",
    "Export": "unmask.exporting.export",
    "Filled": "unmask.inference.filled",
    "FineTuned": "unmask.finetuning.finetune",
    "TaskModel": "unmask.tasks.task_model",
    "MLM": "unmask.masking.mlm",
    "MaskedRows": "unmask.masking.engine",
    "Masker": "unmask.masking.engine",
    "MaskingAudit": "unmask.pretraining.auditing",
    "MaskingCollator": "unmask.collating.collator",
    "Model": "unmask.inference.model",
    "LexiconMade": "unmask.pretraining.lexicon",
    "Predictions": "unmask.tasks.predicting",
    "Prepared": "unmask.pretraining.preparing",
    "Run": "unmask.pretraining.pretrain",
    "Scored": "unmask.inference.score",
    "Search": "unmask.comparing.verdicts",
    "ShownMasks": "unmask.pretraining.shown_masks",
    "Verification": "unmask.exporting.verify",
    "audit": "unmask.pretraining.auditing",
    "compare": "unmask.comparing.verdicts",
    "count_tokens": "unmask.collating.counts",
    "embed": "unmask.inference.embed_file",
    "evaluate": "unmask.inference.evaluate",
    "export": "unmask.exporting.export",
    "fill": "unmask.inference.model",
    "finetune": "unmask.finetuning.finetune",
    "lexicon": "unmask.pretraining.lexicon",
    "lexicon_tables": "unmask.pretraining.lexicon",
    "load": "unmask.inference.model",
    "masks": "unmask.pretraining.shown_masks",
    "predict": "unmask.tasks.predicting",
    "prepare": "unmask.pretraining.preparing",
    "pretrain": "unmask.pretraining.pretrain",
    "recipes": "unmask.recipe.recipe",
    "score": "unmask.inference.score",
    "tune": "unmask.comparing.verdicts",
    "verify": "unmask.exporting.verify",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'unmask' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
