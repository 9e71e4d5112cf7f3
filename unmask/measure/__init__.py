"""Measuring models: figures with intervals."""
