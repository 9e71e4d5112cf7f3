"""Corpus text, in which special tokens are letters, beside prompts, in which they are not."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.tokenizer.families import TEXT, trained
from unmask.tokenizer.tokenizer import Tokenizer

PROMPT = "the king sees [MASK] at sea"


@pytest.mark.parametrize("family", ["wordpiece", "bpe"])
def test_prompts_have_their_masks_while_other_threads_read_a_corpus(family: str) -> None:
    tokenizer = Tokenizer(trained(family).backend)
    texts = [f"{TEXT} [MASK] {number}" for number in range(8)]
    prompt = tokenizer.encode_prompt(PROMPT).tolist()
    assert prompt.count(tokenizer.special.mask) == 1

    def read() -> list[list[int]]:
        both = tokenizer.encode_joined(texts)[0], tokenizer.encode_placed(texts)[0]
        return [encoded.input_ids.tolist() for encoded in both]

    num_prompts = 0
    with ThreadPoolExecutor(2) as threads:
        readers = [threads.submit(read) for _ in range(6)]
        while not all(reader.done() for reader in readers):
            assert tokenizer.encode_prompt(PROMPT).tolist() == prompt
            num_prompts += 1
    assert num_prompts > 5
    found = [ids for reader in readers for ids in reader.result()]
    assert all(ids == found[0] for ids in found)
    assert tokenizer.special.mask not in found[0]
    assert tokenizer.encode_prompt(PROMPT).tolist() == prompt, "and afterwards"
