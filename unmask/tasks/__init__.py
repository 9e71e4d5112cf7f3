"""What a fine-tuned model does: inputs of each task, packed through the network, and what its outputs say."""
