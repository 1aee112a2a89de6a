"""Writes a Parquet file with checksums, FILE CODEC VERSION of its pages; prints where its columns are."""

import sys

import pyarrow
from pyarrow import parquet

rows = range(1000)
table = pyarrow.table(
    {
        "image": [bytes([row % 251]) * (row % 90) for row in rows],
        "label": list(rows),
        "tags": [[row] * (row % 3) for row in rows],
        "weight": [None if row % 5 == 0 else row / 7 for row in rows],
    }
)
parquet.write_table(
    table,
    sys.argv[1],
    row_group_size=400,
    data_page_size=2000,
    write_batch_size=100,
    compression=sys.argv[2],
    data_page_version=sys.argv[3],
    write_page_checksum=True,
    use_dictionary=["label"],
)
metadata, first = parquet.ParquetFile(sys.argv[1]).metadata, 0
for group in map(metadata.row_group, range(metadata.num_row_groups)):
    for column in map(group.column, range(group.num_columns)):
        start = column.dictionary_page_offset or column.data_page_offset
        print(first, start, start + column.total_compressed_size)
    first += group.num_rows
