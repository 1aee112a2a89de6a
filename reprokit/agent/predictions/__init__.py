"""Records predictions and true values: rows in files, scores and digests in lines."""
