-- Where the message of a key came from, for people. It is no numbered step because
-- a ninth column makes the header of every row 8 bytes longer, with an origin or
-- without.
ALTER TABLE {{.Keys}} ADD COLUMN IF NOT EXISTS origin bytea;

COMMENT ON COLUMN {{.Keys}}.origin IS 'where the delivery came from that holds or completed the key; null if not known';
