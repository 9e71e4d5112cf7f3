"""Errors, files, settings, results: what every room uses."""
