-- Which replication slots a relay of the outbox has used. A slot that is in this table and
-- not in the server was lost, with everything that it would have returned.
CREATE TABLE {{.Slots}} (
    slot    text        NOT NULL PRIMARY KEY,
    created timestamptz NOT NULL DEFAULT clock_timestamp()
);

COMMENT ON TABLE {{.Slots}} IS 'Semel: replication slots that relays of the outbox have used';
