-- The column of tokens also tells who made a key done in one step, so that a
-- claim whose answer was lost recognises itself. Rows that are there already do
-- not tell: such a claim is a duplicate of itself, as it was before.
COMMENT ON COLUMN {{.Keys}}.token IS 'fencing token; below 0 a digest of who made the key done in one step; null if that is not known, or was a transaction or a person';
