// The tests here are a module of their own, so that the proxy and what it
// depends on are in nobody's go.sum.
module github.com/semel-dev/semel/test/faults

go 1.26.0

replace github.com/semel-dev/semel => ../../

require (
	github.com/jackc/pgx/v5 v5.12.0
	github.com/semel-dev/semel v0.0.0-00010101000000-000000000000
)

require (
	github.com/dchest/siphash v1.2.3 // indirect
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/puddle/v2 v2.2.3 // indirect
	github.com/redis/rueidis v1.0.79 // indirect
	golang.org/x/sync v0.22.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.41.0 // indirect
)
