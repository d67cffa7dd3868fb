"""What PyTorch expects of a device, and what only this one has: where work runs and what memory it takes."""
