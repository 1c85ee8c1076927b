-- Messages that pipelines put aside. The document is json and not jsonb, which
-- refuses a NUL that an id may have.
CREATE TABLE {{.Parked}} (
    id       text        PRIMARY KEY,
    pipeline text        NOT NULL,
    at       timestamptz NOT NULL,
    queued   timestamptz, -- since when it is to be redriven
    document json        NOT NULL
);

CREATE INDEX ON {{.Parked}} (pipeline, at);
CREATE INDEX ON {{.Parked}} (pipeline, queued) WHERE queued IS NOT NULL;

COMMENT ON TABLE {{.Parked}} IS 'Semel: messages that were put aside, and why';
