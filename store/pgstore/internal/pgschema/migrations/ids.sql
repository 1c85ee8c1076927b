-- Readable keys, for listings. They are no numbered step because a store may be
-- told to keep them at any time.
ALTER TABLE {{.Keys}} ADD COLUMN IF NOT EXISTS scope bytea, ADD COLUMN IF NOT EXISTS id bytea;
