"""Measuring: held-out loss, hidden tokens and words of any text, minimal pairs, and how sure each figure is."""
