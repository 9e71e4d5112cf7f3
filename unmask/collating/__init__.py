"""Masking in the training loops of others: a collator for transformers' `Trainer` and for data loaders."""
