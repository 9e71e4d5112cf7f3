"""What the training of an embedding model would do, without doing it: text is read, and some steps are timed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from unmask.commands.dry_run import fact_lines, measure_steps, memory_fact, training_fact
from unmask.commands.embedder import EmbedderRequest, begin_run, chosen_embedder, requested
from unmask.commands.embedder_run import EmbedderFolder, EmbedderRun
from unmask.commands.embedder_stream import KINDS
from unmask.commands.recipe_files import Overrides
from unmask.core.errors import RunError
from unmask.core.results import Reporter, Result, Shown, SilentReporter, usual_reporter
from unmask.data.sources import InMemory, Texts, is_stream
from unmask.train.distributed import join_group, on_every_rank, on_rank_zero


class EmbedderForecast(Result):
    """What a training would do.

    Attributes:
        documents, held_out_documents, tokens: Of the text; tokens without what is held out.
        pairs: By kind; of documents, the parts that have such a pair.
        num_parameters: Of the model.
        dimension: Numbers of a vector.
        sparse: Whether most of them are to be 0.
        pairs_a_step: That are told from each other.
        steps, step_seconds, seconds: Of the training; without evaluations and the search for hard negatives.
        tokens_per_second: Likewise.
        memory_bytes: The most that a process held; None where the system does not say.
        processes: That train together.
        device: `cpu`, `cuda` or `mps`.
        by_clock: Whether the budget is one of minutes.
    """

    def shown(self) -> Iterator[Shown]:
        """A fact a line."""
        kinds = ", ".join(f"{kind} {number:,}" for kind, number in self.pairs.items() if number)
        text = f"{self.documents:,} documents, {self.held_out_documents:,} held out; {self.tokens:,} tokens"
        yield from fact_lines(
            [
                *([("text", text)] if self.documents else []),
                ("pairs", f"{kinds}; {self.pairs_a_step:,} a step"),
                (
                    "model",
                    f"{self.num_parameters:,} parameters, {'sparse ' if self.sparse else ''}"
                    f"vectors of {self.dimension:,}",
                ),
                training_fact(self),
                memory_fact(self.memory_bytes, self.processes),
            ]
        )

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {name: value for name, value in super().to_dict().items() if name != "by_clock"}


def forecast_embedder(  # noqa: PLR0913  (as `embedder`)
    model: str | Path,
    corpus: Texts | None = None,
    *,
    minutes: float | None = None,
    steps: int | None = None,
    pairs: str | Path | None = None,
    sparse: bool = False,
    seed: int | None = None,
    settings: Overrides = (),
    reporter: Reporter | None = None,
) -> EmbedderForecast:
    """What `embedder` would do with the same arguments. All text is read; what is made of it goes with the answer.

    Raises:
        UnmaskError: As `embedder`; or standard input or a pipe is among the corpus.
    """
    group = join_group()
    reporter = (reporter or usual_reporter()) if group.is_main else SilentReporter()
    chosen = partial(chosen_embedder, settings, minutes=minutes, steps=steps, seed=seed, sparse=sparse)

    def looked() -> EmbedderRequest:
        found = requested(model, corpus, pairs, chosen)
        if any(not isinstance(name, InMemory) and is_stream(name) for name in found.given):
            raise RunError("--dry-run would use standard input or a pipe up; give a file")
        return found

    request = on_every_rank(group, looked)
    with ExitStack() as held:
        scratch = on_rank_zero(group, lambda: held.enter_context(tempfile.TemporaryDirectory(prefix="unmask-")))
        folder = EmbedderFolder(Path(scratch) / "embedder")
        run = on_every_rank(group, lambda: begin_run(folder, request, reporter, group, goes_on=False))
        return _measured(run, request)


def _measured(run: EmbedderRun, request: EmbedderRequest) -> EmbedderForecast:
    run.make_ready()
    measured, facts = measure_steps(run.trainer), run.data.facts
    kinds = {kind: facts[kind] for kind in KINDS if kind in facts}
    return EmbedderForecast(
        {
            "documents": facts.get("documents", 0),
            "held_out_documents": facts.get("held_out_documents", 0),
            "tokens": facts.get("tokens", 0),
            "pairs": kinds | ({"given": facts["given_pairs"]} if "given_pairs" in facts else {}),
            "num_parameters": run.state.model.num_parameters,
            "dimension": run.width,
            "sparse": request.fitted.sparse is not None,
            "pairs_a_step": run.stream.pairs_a_step,
            "steps": measured.steps,
            "step_seconds": measured.step_seconds,
            "seconds": measured.seconds,
            "tokens_per_second": measured.step_tokens / measured.step_seconds,
            "memory_bytes": measured.memory_bytes,
            "processes": measured.processes,
            "device": measured.device,
            "by_clock": run.training.minutes is not None,
        }
    )
