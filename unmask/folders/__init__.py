"""Models on the disk: layouts under their own names, transformers' folders, heads of tasks."""
