"""What models predicted and what was true: rows in files, scores and digests in lines."""
