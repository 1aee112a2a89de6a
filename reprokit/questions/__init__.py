"""Questions put to a replay, which proves by its trail that it is the run that was recorded."""
