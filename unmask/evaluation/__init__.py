"""Measuring: held-out loss on fixed masks, and what a model that knows only word frequencies would reach."""
