// The tests here are a module of their own, so that the proxy and what it
// depends on are in nobody's go.sum.
module github.com/semel-dev/semel/test/faults

go 1.26.0

replace github.com/semel-dev/semel => ../../
