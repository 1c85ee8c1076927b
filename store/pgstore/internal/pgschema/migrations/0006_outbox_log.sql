-- Rows of the outbox that relays have finished with, if they keep them. Each day of
-- delivery is a partition. There is no default partition: new partitions could not be
-- attached without a scan of it.
CREATE TABLE {{.OutboxLog}} (
    seq        bigint      NOT NULL,
    id         uuid        NOT NULL,
    created    timestamptz NOT NULL,
    delivered  timestamptz NOT NULL,
    deliver_at timestamptz,
    attempts   integer     NOT NULL,
    aggregate  text,
    topic      text        NOT NULL,
    relay      text        NOT NULL,
    failure    text,
    headers    json,
    payload    bytea
) PARTITION BY RANGE (delivered);

CREATE INDEX ON {{.OutboxLog}} (id);

COMMENT ON TABLE {{.OutboxLog}} IS 'Semel: messages of the outbox that a relay has delivered';
COMMENT ON COLUMN {{.OutboxLog}}.delivered IS 'when the relay moved the row here';
COMMENT ON COLUMN {{.OutboxLog}}.failure IS 'why the message was parked or dropped; null if it was delivered';

-- It makes the partitions of today and of the days ahead, and drops those whose last row
-- is older than keep. A relay calls it; its role needs no right to create tables, only
-- EXECUTE. It returns why a partition could not be dropped, or null.
CREATE FUNCTION {{.OutboxLogMaintain}} (keep interval, ahead integer DEFAULT 3)
RETURNS text LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' SET datestyle = 'ISO' SET lock_timeout = '5s' AS $maintain$
DECLARE
    day  date;
    part text;
BEGIN
    -- One session at a time. Inserts do not wait for this lock.
    LOCK TABLE {{.OutboxLog}} IN SHARE UPDATE EXCLUSIVE MODE;
    FOR day IN SELECT current_date + n FROM generate_series(0, ahead) AS n LOOP
        part := '{{.OutboxLogPart}}' || to_char(day, 'YYYYMMDD');
        IF NOT EXISTS (SELECT FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid WHERE i.inhparent = {{.OutboxLogLiteral}}::regclass AND c.relname = part) THEN
            EXECUTE format('CREATE TABLE %I.%I (LIKE {{.OutboxLog}})', '{{.Schema}}', part);
            EXECUTE format('ALTER TABLE {{.OutboxLog}} ATTACH PARTITION %I.%I FOR VALUES FROM (%L) TO (%L)', '{{.Schema}}', part, day::timestamptz, (day + 1)::timestamptz);
        END IF;
    END LOOP;
    -- A drop waits for everything that uses the table, and everything else waits behind it.
    PERFORM set_config('lock_timeout', '100ms', true);
    FOR part IN
        SELECT c.relname FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
        WHERE i.inhparent = {{.OutboxLogLiteral}}::regclass AND c.relname ~ '^{{.OutboxLogPart}}\d{8}$'
            AND (to_date(right(c.relname, 8), 'YYYYMMDD') + 1)::timestamptz <= now() - keep
        ORDER BY c.relname
    LOOP
        BEGIN
            EXECUTE format('DROP TABLE %I.%I', '{{.Schema}}', part);
        EXCEPTION WHEN OTHERS THEN
            RETURN part || ': ' || SQLERRM;
        END;
    END LOOP;
    RETURN NULL;
END
$maintain$;

REVOKE ALL ON FUNCTION {{.OutboxLogMaintain}} FROM PUBLIC;
