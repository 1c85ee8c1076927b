"""Keep the first line of each event_id, in order.

The regular expression is faster than str.json_path_match and right for the
generated lines.
"""
import sys

import polars as pl

(
    pl.scan_lines(sys.argv[1])
    .with_columns(event_id=pl.col("line").str.extract(r'"event_id":\s*"([^"]+)"'))
    .unique("event_id", keep="first", maintain_order=True)
    .select("line")
    # One column, and neither separator nor quotes that could occur in it: CSV
    # is the way to write lines as they are.
    .sink_csv(sys.argv[2], include_header=False, quote_style="never", separator="\x01")
)
