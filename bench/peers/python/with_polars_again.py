"""Keep the first line of each event_id that no earlier run had, in order.

The ids are in Parquet files: with_polars_again.py DIRECTORY IN [OUT]. Without OUT, the ids
of IN are only remembered.
"""
import pathlib
import sys

import polars as pl

state = pathlib.Path(sys.argv[1])
files = sorted(state.glob("*.parquet"))
fresh = (
    pl.scan_lines(sys.argv[2])
    .with_columns(event_id=pl.col("line").str.extract(r'"event_id":\s*"([^"]+)"'))
    .unique("event_id", keep="first", maintain_order=True)
)
if files:
    fresh = fresh.join(pl.scan_parquet(files), on="event_id", how="anti", maintain_order="left")
fresh = fresh.collect()
if len(sys.argv) > 3:
    fresh.select("line").write_csv(sys.argv[3], include_header=False, quote_style="never", separator="\x01")
fresh.select("event_id").write_parquet(state / f"{len(files):06}.parquet")
