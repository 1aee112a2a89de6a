"""Prints what depends on the seeds of polars' hash tables: the order of groups and of unique values."""

import hashlib

import polars

count = 20_000
names = [f"user{7919 * number % 503}" for number in range(count)]
frame = polars.DataFrame({"name": names, "value": [0.1 * number for number in range(count)]})
groups = frame.group_by("name").agg(polars.col("value").sum())
unique = frame["name"].unique().to_list()
print(hashlib.sha256(repr((groups.rows(), unique)).encode()).hexdigest())
