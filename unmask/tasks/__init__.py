"""What a model can do: filling masks, embedding, and a file for each task."""
