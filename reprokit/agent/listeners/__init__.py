"""What a run keeps of the events of any framework."""
