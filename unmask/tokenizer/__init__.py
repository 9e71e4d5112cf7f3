"""The tokenizer: its families, its training, where words begin, and new words."""
