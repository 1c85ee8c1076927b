"""Keep the first line of each event_id; one thread keeps the order."""
import sys

import chdb

source, target = (name.replace("\\", "\\\\").replace("'", "\\'") for name in sys.argv[1:3])
chdb.query(
    f"""
    INSERT INTO FUNCTION file('{target}', 'TSVRaw', 'line String')
    SELECT line FROM file('{source}', 'LineAsString')
    LIMIT 1 BY JSONExtractString(line, 'event_id')
    SETTINGS max_threads = 1, engine_file_truncate_on_insert = 1
    """
)
