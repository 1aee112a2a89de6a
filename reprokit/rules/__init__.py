"""Rules: what a training shows in its saved tensors when it goes wrong. They run beside the training, never in it."""
