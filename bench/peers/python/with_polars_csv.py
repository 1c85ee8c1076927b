"""Keep the first record of each event_id, in order. All columns are text."""
import sys

import polars as pl

(
    pl.scan_csv(sys.argv[1], infer_schema=False)
    .unique("event_id", keep="first", maintain_order=True)
    .sink_csv(sys.argv[2])
)
