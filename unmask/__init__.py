"""unmask: from raw text to a working encoder.

Public names are loaded when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unmask.collating.collator import MaskingCollator
    from unmask.collating.counts import count_tokens
    from unmask.exporting.export import Export, export
    from unmask.exporting.verify import Verification, verify
    from unmask.finetuning.finetune import FineTuned, finetune
    from unmask.inference.model import Model, load
    from unmask.masking.engine import MaskedRows, Masker
    from unmask.masking.mlm import MLM
    from unmask.pretraining.lexicon import lexicon_tables
    from unmask.pretraining.pretrain import Run, pretrain
    from unmask.tasks.model import TaskModel

__version__ = "0.1.0"
__all__ = [
    "MLM",
    "Export",
    "FineTuned",
    "MaskedRows",
    "Masker",
    "MaskingCollator",
    "Model",
    "Run",
    "TaskModel",
    "Verification",
    "count_tokens",
    "export",
    "finetune",
    "lexicon_tables",
    "load",
    "pretrain",
    "verify",
]

_WHERE = {
    "Export": "unmask.exporting.export",
    "FineTuned": "unmask.finetuning.finetune",
    "TaskModel": "unmask.tasks.model",
    "MLM": "unmask.masking.mlm",
    "MaskedRows": "unmask.masking.engine",
    "Masker": "unmask.masking.engine",
    "MaskingCollator": "unmask.collating.collator",
    "Model": "unmask.inference.model",
    "Run": "unmask.pretraining.pretrain",
    "Verification": "unmask.exporting.verify",
    "count_tokens": "unmask.collating.counts",
    "export": "unmask.exporting.export",
    "finetune": "unmask.finetuning.finetune",
    "lexicon_tables": "unmask.pretraining.lexicon",
    "load": "unmask.inference.model",
    "pretrain": "unmask.pretraining.pretrain",
    "verify": "unmask.exporting.verify",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'unmask' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
