-- The audit log: who changed a key by hand, and why. Rows are only ever added.
-- A line is json and not jsonb, which refuses a NUL that an id may have.
CREATE TABLE {{.Audit}} (
    number bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    line   json        NOT NULL
);

COMMENT ON TABLE {{.Audit}} IS 'Semel: who changed a key by hand, and why';
