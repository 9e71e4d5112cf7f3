"""Rows to masked rows: units x weights x budget x replacement, on whole batches of tensors."""
