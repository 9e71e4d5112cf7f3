"""Who says what of a text: spaCy pipelines, gazetteers, and annotations that came with it."""
