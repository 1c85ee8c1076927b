"""Keep the first of equal lines by row number, with bounded memory.

with_duckdb_beyond.py IN OUT DIRECTORY MEMORY. What does not fit is in the directory.
"""
import sys

import duckdb

source, target, directory, memory = sys.argv[1:]
duckdb.execute("SET memory_limit = '%s'" % memory)
duckdb.execute("SET temp_directory = '%s'" % directory.replace("'", "''"))
# As CSV, but with neither separator nor quotes that could occur in a line.
duckdb.execute(
    """
    COPY (
        SELECT line
        FROM (
            SELECT line, row_number() OVER () AS number
            FROM read_csv($source, header = false, columns = {'line': 'VARCHAR'}, delim = '\x01',
                          quote = '', escape = '', strict_mode = false)
        )
        GROUP BY line
        ORDER BY min(number)
    ) TO '%s' (FORMAT csv, HEADER false, DELIMITER '\x01', QUOTE '', ESCAPE '')
    """
    % target.replace("'", "''"),
    {"source": source},
)
