"""Documents to tokens: the tokenizer, word starts, shards of tokens and their manifest."""
