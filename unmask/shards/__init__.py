"""Documents to shards of tokens and their manifest; collocations that are counted in them."""
