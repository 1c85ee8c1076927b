// A module of its own, because no module registry has the peer. The benchmark names its
// directory: see bench/README.md.
module github.com/semel-dev/semel/bench/peers/idemlease

go 1.26.0
