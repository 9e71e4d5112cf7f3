"""Recipes: every setting of a run in one frozen value, read from TOML."""
