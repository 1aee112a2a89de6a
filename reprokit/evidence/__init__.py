"""What is shown and given to others of runs: reports, statements, exports, bundles."""
