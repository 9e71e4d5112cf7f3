"""Searching with a model, and judging it without labels."""
