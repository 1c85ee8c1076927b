"""Keep the first record of each event_id by row number. All columns are text."""
import sys

import duckdb

duckdb.execute(
    """
    COPY (
        SELECT unnest(arg_min(record, number))
        FROM (
            SELECT record, row_number() OVER () AS number
            FROM read_csv($source, header = true, all_varchar = true) AS record
        )
        GROUP BY record.event_id
        ORDER BY min(number)
    ) TO '%s' (FORMAT csv, HEADER true)
    """
    % sys.argv[2].replace("'", "''"),
    {"source": sys.argv[1]},
)
