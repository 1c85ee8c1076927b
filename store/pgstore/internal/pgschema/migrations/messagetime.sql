-- Message time: how old a message may be, in microseconds, between how many
-- partitions its time is divided, the time of messages before which what has
-- no record is late, and since when all transactions that begin go by it.
CREATE TABLE {{.Times}} (
    age   bigint      NOT NULL PRIMARY KEY,
    slots integer     NOT NULL,
    floor timestamptz NOT NULL,
    since timestamptz
);

INSERT INTO {{.Times}} VALUES ({{.MessageAge}}, {{.Partitions}}, '1970-01-01 00:00:00+00', clock_timestamp());
