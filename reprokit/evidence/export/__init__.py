"""Writes runs in the formats of other tools: MLflow, DVC, CycloneDX."""
