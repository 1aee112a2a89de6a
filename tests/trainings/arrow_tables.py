"""Writes tables by Arrow: two that differ, one of them packed otherwise, one that is cut short, one with a bit flipped,
one whose column says more about itself, and one whose first message begins as polars writes it."""

import sys
from pathlib import Path

import pyarrow as pa
from pyarrow import feather, ipc, parquet

ending, place = sys.argv[1], Path(sys.argv[2])


def write(name, numbers, names, **options):
    path = place / f"{name}.{ending}"
    table = pa.table({"loss": pa.array(numbers, pa.float32()), "name": names, "step": list(range(len(names)))})
    if "unit" in options:
        about = {"unit": options.pop("unit")}
        table = table.cast(
            pa.schema([field.with_metadata(about) if field.name == "loss" else field for field in table.schema])
        )
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
write("about", [0.5, None, 0.25], ["a", "b", "c"], unit="nats")
flipped = bytearray(left.read_bytes())
flipped[45] ^= 4  # of the schema at the beginning, which readers of the file's end leave unread
(place / f"flipped.{ending}").write_bytes(flipped)
if ending != "parquet":  # polars leaves out what the format puts before the first message: a marker and a length
    data = (place / f"packed.{ending}").read_bytes()
    stop = 16 + int.from_bytes(data[12:16], "little")
    (place / f"unmarked.{ending}").write_bytes(data[:8] + data[16:stop] + bytes(8) + data[stop:])
    other = data[:8] + flipped[16:stop] + bytes(8) + data[stop:]
    (place / f"unmarked-flipped.{ending}").write_bytes(other)
