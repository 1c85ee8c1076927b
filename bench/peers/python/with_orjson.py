"""Keep the first line of each event_id: a set of strings."""
import sys

import orjson

seen = set()
with open(sys.argv[1], "rb") as lines, open(sys.argv[2], "wb") as out:
    for line in lines:
        event_id = orjson.loads(line)["event_id"]
        if event_id not in seen:
            seen.add(event_id)
            out.write(line)
