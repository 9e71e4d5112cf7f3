"""Pieces to rows: packing without loss, in an order that is a function of (seed, epoch)."""
