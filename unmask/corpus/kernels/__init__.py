"""Fingerprints of texts: loops over characters and words, compiled."""
