from __future__ import annotations

from collections import Counter as Naive
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.data.lexicon import KeyCounter

ENDS = np.iinfo(np.int64)


@settings(max_examples=60, deadline=None)
@given(
    keys=st.lists(
        st.one_of(st.integers(-9, 9), st.integers(int(ENDS.min), int(ENDS.max)), st.sampled_from([ENDS.min, ENDS.max])),
        max_size=120,
    ),
    cut=st.integers(1, 20),
    run_keys=st.integers(1, 30),
    above=st.integers(0, 3),
)
def test_counts_are_those_of_a_naive_counter(keys: list[int], cut: int, run_keys: int, above: int) -> None:
    """However keys are cut into parts, and however few fit into memory."""
    naive = Naive(map(int, keys))
    with TemporaryDirectory() as folder:
        with KeyCounter(Path(folder), run_keys=run_keys) as counter:
            for begin in range(0, len(keys), cut):
                counter.add(np.array(keys[begin : begin + cut], dtype=np.int64))
            parts = list(counter.merged())
            often = counter.above(above)
        assert not list(Path(folder).iterdir()), "nothing stays on the disk"
    merged = np.concatenate([part.keys for part in parts])
    assert merged.tolist() == sorted(naive)
    assert np.concatenate([part.counts for part in parts]).tolist() == [naive[key] for key in sorted(naive)]
    assert dict(zip(often.keys.tolist(), often.counts.tolist(), strict=True)) == {
        key: count for key, count in naive.items() if count > above
    }
