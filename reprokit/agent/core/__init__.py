"""What the agent is built on, and what listens to no event: the journal, exact values, digests, wrapping, imports."""
