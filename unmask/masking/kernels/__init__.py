"""Masking on CPUs: loops over tokens, compiled. What GPUs compute by tensor operations stands beside each caller."""
