-- The outbox: messages that a transaction writes with its other rows, and that a
-- relay deletes when a broker has acknowledged them.
--
-- A cache above 1 would let the numbers of one aggregate fall from one session to
-- the next. The shard is not part of the primary key: a publication of all tables
-- refuses deletes if its identity has a generated column.
CREATE TABLE {{.Outbox}} (
    seq        bigint      GENERATED ALWAYS AS IDENTITY (CACHE 1) PRIMARY KEY,
    shard      smallint    NOT NULL GENERATED ALWAYS AS ((coalesce(hashtext(aggregate), uuid_hash(id)) & 63)::smallint) STORED,
    id         uuid        NOT NULL DEFAULT gen_random_uuid(),
    created    timestamptz NOT NULL DEFAULT clock_timestamp(),
    deliver_at timestamptz,
    aggregate  text,
    topic      text        NOT NULL DEFAULT '',
    headers    json        CHECK (json_typeof(headers) = 'object'),
    payload    bytea
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_analyze_scale_factor = 0.05);

-- Rows that wait for their time are in an index of their own, so that the relay
-- does not read past them.
CREATE INDEX ON {{.Outbox}} (shard, seq) WHERE deliver_at IS NULL;
CREATE INDEX ON {{.Outbox}} (shard, deliver_at, seq) WHERE deliver_at IS NOT NULL;

COMMENT ON TABLE {{.Outbox}} IS 'Semel: messages that wait for a relay';
COMMENT ON COLUMN {{.Outbox}}.seq IS 'order of the inserts; in one aggregate, order of delivery';
COMMENT ON COLUMN {{.Outbox}}.shard IS 'which of 64 shards has the row, by its aggregate';
COMMENT ON COLUMN {{.Outbox}}.id IS 'the id under which consumers know the message';
COMMENT ON COLUMN {{.Outbox}}.deliver_at IS 'not delivered before this time; null is immediately';
COMMENT ON COLUMN {{.Outbox}}.aggregate IS 'messages of one aggregate keep their order; null has no order';
COMMENT ON COLUMN {{.Outbox}}.headers IS 'an object of texts, in their order';

-- Which relay has which shard, until when. The epoch grows with each owner.
CREATE TABLE {{.Shards}} (
    shard smallint    NOT NULL PRIMARY KEY,
    epoch bigint      NOT NULL DEFAULT 0,
    until timestamptz NOT NULL DEFAULT '-infinity',
    owner text
);

INSERT INTO {{.Shards}} (shard) SELECT generate_series(0, 63);

-- Which relays live, so that each takes its share of the shards.
CREATE TABLE {{.Relays}} (
    owner text        NOT NULL PRIMARY KEY,
    until timestamptz NOT NULL
);

COMMENT ON TABLE {{.Shards}} IS 'Semel: which relay has which shard of the outbox';
COMMENT ON TABLE {{.Relays}} IS 'Semel: relays of the outbox that live';

-- One message, for programs in other languages. It returns the id.
CREATE FUNCTION {{.OutboxWrite}} (topic text, payload bytea, aggregate text DEFAULT NULL, headers json DEFAULT NULL, id uuid DEFAULT NULL, deliver_at timestamptz DEFAULT NULL)
RETURNS uuid LANGUAGE sql AS $write$
    INSERT INTO {{.Outbox}} (topic, payload, aggregate, headers, id, deliver_at)
    VALUES ($1, $2, $3, $4, coalesce($5, gen_random_uuid()), $6)
    RETURNING id
$write$;
