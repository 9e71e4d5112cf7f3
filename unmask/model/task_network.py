"""The networks that do a task: ours, and those that transformers runs."""

from __future__ import annotations

from unmask.model.config import EncoderConfig
from unmask.model.encoder import MaskedLM
from unmask.model.foreign import ForeignConfig, ForeignTask

TaskNetwork = MaskedLM | ForeignTask
TaskConfig = EncoderConfig | ForeignConfig
