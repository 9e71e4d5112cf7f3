"""Loops of the training step, compiled for CPUs."""
