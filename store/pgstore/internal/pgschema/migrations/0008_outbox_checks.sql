-- What no relay could deliver is refused when it is written. Rows that are there
-- already are not checked.
--
-- A relay has a message in memory several times, and brokers limit their messages.
-- Times must be ones that every consumer can read. Headers are delivered as texts;
-- more nesting than this is beyond the parsers of most languages.
ALTER TABLE {{.Outbox}}
    ADD CONSTRAINT size_limit CHECK (coalesce(octet_length(payload), 0) + coalesce(octet_length(headers::text), 0) + coalesce(octet_length(aggregate), 0) + octet_length(topic) <= 8388608) NOT VALID,
    ADD CONSTRAINT created_range CHECK (created >= '0001-01-01 00:00:00+00' AND created < '10000-01-01 00:00:00+00') NOT VALID,
    ADD CONSTRAINT deliver_at_range CHECK (deliver_at >= '0001-01-01 00:00:00+00' AND deliver_at < '10000-01-01 00:00:00+00') NOT VALID,
    ADD CONSTRAINT headers_depth CHECK (octet_length(headers::text) < 10000 OR octet_length(headers::text) - octet_length(translate(headers::text, '[{', '')) < 10000) NOT VALID;

-- Which pipeline the outbox belongs to, and where it delivers. Relays of another
-- pipeline would take a part of the messages away from it.
CREATE TABLE {{.OutboxPipeline}} (
    one      boolean     NOT NULL PRIMARY KEY DEFAULT true CHECK (one),
    pipeline text        NOT NULL,
    target   text        NOT NULL,
    since    timestamptz NOT NULL DEFAULT clock_timestamp()
);

COMMENT ON TABLE {{.OutboxPipeline}} IS 'Semel: the pipeline that the outbox belongs to';

-- Without RETURNING, which needs the right to read the table.
CREATE OR REPLACE FUNCTION {{.OutboxWrite}} (topic text, payload bytea, aggregate text DEFAULT NULL, headers json DEFAULT NULL, id uuid DEFAULT NULL, deliver_at timestamptz DEFAULT NULL)
RETURNS uuid LANGUAGE plpgsql AS $write$
DECLARE
    written uuid := coalesce($5, gen_random_uuid());
BEGIN
    INSERT INTO {{.Outbox}} (topic, payload, aggregate, headers, id, deliver_at) VALUES ($1, $2, $3, $4, written, $6);
    RETURN written;
END
$write$;
