"""The loop, the step, objectives, optimizers, checkpoints."""
