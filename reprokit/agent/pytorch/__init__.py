"""PyTorch: the one place of the agent that touches it. What a run keeps is made of its events by listeners."""
