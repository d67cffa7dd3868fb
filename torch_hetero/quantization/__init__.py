"""Linear layers with weights in 8 and 4 bits: made of a model's own, or read from a checkpoint."""
