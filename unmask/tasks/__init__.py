"""What a model can do: fill, embed, and a file a task."""
