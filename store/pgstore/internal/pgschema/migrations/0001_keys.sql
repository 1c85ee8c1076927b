-- Records: one row for each key.
--
-- A row is done if it has no owner, and forgotten from "until" on. With an
-- owner it is claimed, with its lease ending at "until"; if the first byte of
-- the owner is 1, it becomes unknown then instead of free.
--
-- The eight columns leave a row's header at 24 bytes however many are null.
CREATE TABLE {{.Keys}} (
    key         uuid        NOT NULL,
    until       timestamptz NOT NULL,
    seen        timestamptz NOT NULL,
    token       bigint,
    fingerprint bigint,
    attempt     integer,
    owner       bytea,
    result      bytea,
    PRIMARY KEY (key)
){{.Storage}}
COMMENT ON TABLE {{.Keys}} IS 'Semel: keys of messages, and what became of them';
COMMENT ON COLUMN {{.Keys}}.key IS 'keyed 128-bit digest of scope and id';
COMMENT ON COLUMN {{.Keys}}.until IS 'end of the lease of a claimed key, of the window of a done one';
COMMENT ON COLUMN {{.Keys}}.seen IS 'first claim';
COMMENT ON COLUMN {{.Keys}}.token IS 'fencing token; null if done in one step or settled by hand';
COMMENT ON COLUMN {{.Keys}}.fingerprint IS 'first 8 bytes of the fingerprint of the payload';
COMMENT ON COLUMN {{.Keys}}.attempt IS 'how many claims this record had; null is 1';
COMMENT ON COLUMN {{.Keys}}.owner IS '1 byte: hold, 8 bytes: nonce, then the name of the holder; null if done';
COMMENT ON COLUMN {{.Keys}}.result IS '1 byte: kind, then the result; null is none';

-- Fencing tokens. A cache above 1 would let them fall from one session to the
-- next.
CREATE SEQUENCE {{.Tokens}} AS bigint CACHE 1;

-- What all processes must agree on: the secret of the digests, and whose turn
-- it is to clean up.
CREATE TABLE {{.Meta}} (
    name  text NOT NULL PRIMARY KEY,
    value bytea,
    at    timestamptz
);

INSERT INTO {{.Meta}} (name, value)
VALUES ('secret', substring(sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())) FROM 1 FOR 16))
ON CONFLICT (name) DO NOTHING;

INSERT INTO {{.Meta}} (name, value) VALUES ('cleanup', '{{.Cleanup}}')
ON CONFLICT (name) DO NOTHING;
{{.MessageTime}}
INSERT INTO {{.Meta}} (name, at) VALUES ('cleaning', '-infinity'), ('cleaned', clock_timestamp())
ON CONFLICT (name) DO NOTHING;
