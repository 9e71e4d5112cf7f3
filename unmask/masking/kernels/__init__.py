"""Masking, on the host: loops over tokens, compiled."""
