"""Writes tables by Arrow: two that differ, one of them packed otherwise, and one that is cut short."""

import sys
from pathlib import Path

import pyarrow as pa
from pyarrow import feather, ipc, parquet

ending, place = sys.argv[1], Path(sys.argv[2])


def write(name, numbers, names, **options):
    path = place / f"{name}.{ending}"
    table = pa.table({"loss": pa.array(numbers, pa.float32()), "name": names, "step": list(range(len(names)))})
    if ending == "parquet":
        parquet.write_table(table, path, **options)
    elif ending == "feather":
        feather.write_feather(table, path, compression=options.get("compression", "lz4"))
    else:
        with ipc.new_file(path, table.schema, options=ipc.IpcWriteOptions(**options)) as file:
            file.write_table(table)
    return path


left = write("left", [0.5, None, 0.25], ["a", "b", "c"])
write("right", [0.5, 0.0, 0.375], ["a", "b", "d"])
write("packed", [0.5, None, 0.25], ["a", "b", "c"], compression="zstd")
(place / f"cut.{ending}").write_bytes(left.read_bytes()[: left.stat().st_size // 2])
