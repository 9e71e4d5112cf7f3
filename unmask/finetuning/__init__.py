"""Fine-tuning: labelled files, the loop that pretraining uses, early stopping, several seeds, metrics, the report."""
