"""Texts through a network."""
