"""Keep the first line of each event_id that no earlier run had, in order.

The ids are in a database: with_duckdb_again.py DATABASE IN [OUT]. Without OUT, the ids of
IN are only remembered. The column type UUID makes table and join smaller.
"""
import sys

import duckdb

db = duckdb.connect(sys.argv[1])
db.execute("CREATE TABLE IF NOT EXISTS seen (event_id UUID)")
# As CSV, but with neither separator nor quotes that could occur in a line.
db.execute(
    """
    CREATE TEMP TABLE fresh AS
    SELECT event_id, arg_min(line, number) AS first_line, min(number) AS number
    FROM (
        SELECT line, row_number() OVER () AS number, json_extract_string(line, '$.event_id')::UUID AS event_id
        FROM read_csv($source, header = false, columns = {'line': 'VARCHAR'}, delim = '\x01',
                      quote = '', escape = '', strict_mode = false)
    )
    ANTI JOIN seen USING (event_id)
    GROUP BY event_id
    """,
    {"source": sys.argv[2]},
)
if len(sys.argv) > 3:
    db.execute(
        "COPY (SELECT first_line FROM fresh ORDER BY number) TO '%s' (FORMAT csv, HEADER false, DELIMITER '\x01', QUOTE '', ESCAPE '')"
        % sys.argv[3].replace("'", "''")
    )
db.execute("INSERT INTO seen SELECT event_id FROM fresh")
db.close()
