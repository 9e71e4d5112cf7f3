"""unmask: from raw text to a working encoder.

Public names are loaded when they are first used, so that importing the package costs nothing. Their one list is the
block below: type checkers and editors read it as imports, and `__getattr__` reads it from the source.
"""

from __future__ import annotations

import ast
import functools
import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if "OMP_WAIT_POLICY" not in os.environ:
    # Idle threads of OpenMP spin before they sleep, and keep a core meanwhile from torch, numba and other programs.
    # It is read when torch and numba are loaded. Measured: docs/how-to/scaling.md.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

if TYPE_CHECKING:
    from unmask.commands.compare import Comparison as Comparison
    from unmask.commands.compare import compare as compare
    from unmask.commands.embed import EmbeddedFile as EmbeddedFile
    from unmask.commands.embed import embed as embed
    from unmask.commands.embedder import Embedder as Embedder
    from unmask.commands.embedder import embedder as embedder
    from unmask.commands.evaluate import Evaluation as Evaluation
    from unmask.commands.evaluate import Scored as Scored
    from unmask.commands.evaluate import evaluate as evaluate
    from unmask.commands.evaluate import score as score
    from unmask.commands.finetune import FineTuned as FineTuned
    from unmask.commands.finetune import finetune as finetune
    from unmask.commands.masking_tables import LexiconMade as LexiconMade
    from unmask.commands.masking_tables import lexicon as lexicon
    from unmask.commands.masks import MaskingAudit as MaskingAudit
    from unmask.commands.masks import ShownMasks as ShownMasks
    from unmask.commands.masks import audit as audit
    from unmask.commands.masks import masks as masks
    from unmask.commands.prepare import Prepared as Prepared
    from unmask.commands.prepare import PreparedPart as PreparedPart
    from unmask.commands.prepare import prepare as prepare
    from unmask.commands.pretrain import Run as Run
    from unmask.commands.pretrain import pretrain as pretrain
    from unmask.commands.push import Pushed as Pushed
    from unmask.commands.push import push as push
    from unmask.commands.recipe_files import recipes as recipes
    from unmask.commands.settings import SettingsReference as SettingsReference
    from unmask.commands.settings import settings as settings
    from unmask.commands.tune import Tuning as Tuning
    from unmask.commands.tune import tune as tune
    from unmask.core.errors import CorpusError as CorpusError
    from unmask.core.errors import DataError as DataError
    from unmask.core.errors import DivergedError as DivergedError
    from unmask.core.errors import MemoryFullError as MemoryFullError
    from unmask.core.errors import ModelError as ModelError
    from unmask.core.errors import RunError as RunError
    from unmask.core.errors import SettingsError as SettingsError
    from unmask.core.errors import TokenizerError as TokenizerError
    from unmask.core.errors import UnmaskError as UnmaskError
    from unmask.core.errors import UnsupportedError as UnsupportedError
    from unmask.core.errors import WriteError as WriteError
    from unmask.core.settings import Settings as Settings
    from unmask.exporting.onnx import Export as Export
    from unmask.exporting.onnx import export as export
    from unmask.exporting.verify import Verification as Verification
    from unmask.exporting.verify import verify as verify
    from unmask.masking.collator import MaskingCollator as MaskingCollator
    from unmask.masking.collator import evaluation_loss as evaluation_loss
    from unmask.masking.collator import token_losses as token_losses
    from unmask.masking.features import count_tokens as count_tokens
    from unmask.masking.masker import MaskedRows as MaskedRows
    from unmask.masking.masker import Masker as Masker
    from unmask.masking.mlm import MLM as MLM
    from unmask.search.evaluate import SearchEvaluation as SearchEvaluation
    from unmask.search.evaluate import evaluate_search as evaluate_search
    from unmask.search.index import Hits as Hits
    from unmask.search.index import Index as Index
    from unmask.search.index import IndexChange as IndexChange
    from unmask.tasks.fill import Filled as Filled
    from unmask.tasks.loaded_model import Model as Model
    from unmask.tasks.loaded_model import fill as fill
    from unmask.tasks.loaded_model import load as load
    from unmask.tasks.predict import Predictions as Predictions
    from unmask.tasks.predict import predict as predict
    from unmask.tasks.text_encoder import TextEncoder as TextEncoder
    from unmask.train.callbacks import Callback as Callback
    from unmask.train.objectives import Objective as Objective
    from unmask.train.trainer import Trainer as Trainer
    from unmask.web.studio import StudioVisit as StudioVisit
    from unmask.web.studio import studio as studio

__version__ = "0.1.0"


@functools.cache
def _modules() -> dict[str, str]:
    """The module of each public name."""
    tree = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    [listed] = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [node for node in listed.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted(_modules())
    if name not in _modules():
        raise AttributeError(f"module 'unmask' has no attribute {name!r}")
    return getattr(importlib.import_module(_modules()[name]), name)


def __dir__() -> list[str]:
    return sorted(_modules())
