package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/semel-dev/semel"
)

var _ semel.Doctor = (*Store)(nil)

// Examine implements [semel.Doctor]. It asks every master for a few answers and
// changes nothing. What a server does not let us see is a finding that says so.
// Of several masters each finding names the one it is about.
func (s *Store) Examine(ctx context.Context) ([]semel.Finding, error) {
	return Examine(ctx, s.client, &s.opts)
}

// Examine is [Store.Examine] for servers on which a store with these options
// cannot be opened, such as a replica or a server without memory. Nil options
// are the zero options.
func Examine(ctx context.Context, client rueidis.Client, opts *Options) ([]semel.Finding, error) {
	s := &Store{client: client, opts: opts.withDefaults()}
	if err := s.greet(ctx); err != nil {
		return nil, err
	}
	nodes := s.client.Nodes()
	var findings []semel.Finding
	var failed []error
	masters := 0
	for _, addr := range slices.Sorted(maps.Keys(nodes)) {
		p, err := askPatient(ctx, addr, nodes[addr])
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", addr, storeError("examine", err)))
			continue
		}
		if s.cluster && p.info["role"] != "master" {
			continue
		}
		masters++
		if c, ok := client.(*Client); ok {
			p.secured, p.plain = c.secured, !c.secured
		}
		for _, f := range s.examine(p) {
			if len(nodes) > 1 {
				f.Found += ", at " + addr
			}
			findings = append(findings, f)
		}
	}
	if masters == 0 {
		return nil, fmt.Errorf("redisstore: examine: no master answered: %w", errors.Join(append(failed, semel.ErrStoreUnavailable)...))
	}
	for _, err := range failed {
		findings = append(findings, semel.Finding{
			Severity: semel.Broken,
			Subject:  "node",
			Found:    err.Error(),
			Cost:     "keys of a master that does not answer cannot be claimed, and their messages wait",
			Remedy:   "start it, or take it out of the cluster",
		})
	}
	if s.cluster {
		findings = append(findings, examineCluster(ctx, s.client)...)
	}
	findings = append(findings, s.examineAgreement(ctx), s.examinePermissions(ctx))
	return findings, nil
}

func (s *Store) examine(p *patient) []semel.Finding {
	findings := []semel.Finding{p.server(), p.connection(), p.role(), p.policy(), p.evicted(), p.memory()}
	findings = append(findings, p.log(s.opts.Persistence)...)
	findings = append(findings, p.snapshots(), p.replicas(), p.minReplicas(), p.clock(), p.scripts())
	if s.opts.Compact != nil {
		findings = append(findings, p.packing())
	}
	return findings
}

// patient is one server and what it said.
type patient struct {
	addr   string
	info   map[string]string
	config map[string]string
	// refused is why the configuration is not known, if it is not.
	refused error
	// ahead is how far the server's clock is ahead of ours, give or take
	// doubt.
	ahead, doubt time.Duration
	// secured and plain tell whether the connection has TLS, if that is known.
	secured, plain bool
}

// asked are the parameters whose values INFO does not tell.
var asked = [...]string{"appendfsync", "save", "min-replicas-to-write", "min-replicas-max-lag", "set-max-intset-entries"}

// askPatient asks a server for all that is looked at. It needs INFO and TIME;
// CONFIG is often forbidden, and known to be missed then.
func askPatient(ctx context.Context, addr string, node rueidis.Client) (*patient, error) {
	p := &patient{addr: addr, config: map[string]string{}}
	text, err := node.Do(ctx, node.B().Info().Section("all").Build()).ToString()
	if err != nil {
		return nil, err
	}
	p.info = fields(text)
	before := time.Now()
	micros, err := serverTime(node.Do(ctx, node.B().Time().Build()))
	if err != nil {
		return nil, err
	}
	p.doubt = time.Since(before) / 2
	p.ahead = time.UnixMicro(micros).Sub(before.Add(p.doubt))
	for _, name := range asked {
		values, err := node.Do(ctx, node.B().ConfigGet().Parameter(name).Build()).AsStrMap()
		if err != nil {
			if _, ok := rueidis.IsRedisErr(err); !ok {
				return nil, err
			}
			p.refused = err
			break
		}
		maps.Copy(p.config, values)
	}
	return p, nil
}

// fields reads lines of the form name:value.
func fields(text string) map[string]string {
	m := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && !strings.HasPrefix(name, "#") {
			m[name] = value
		}
	}
	return m
}

// number reads a count of INFO; what is not there is 0.
func (p *patient) number(name string) int64 {
	n, err := strconv.ParseInt(p.info[name], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// parameter returns a value of the configuration, or a finding that says that
// it could not be seen and what that leaves open.
func (p *patient) parameter(name, open string) (string, *semel.Finding) {
	if value, ok := p.config[name]; ok {
		return value, nil
	}
	why := "the server has no such parameter"
	if p.refused != nil {
		why = "CONFIG GET is refused: " + p.refused.Error()
	}
	return "", &semel.Finding{
		Severity: semel.Notice,
		Subject:  name,
		Found:    "could not look: " + why,
		Cost:     "not known: " + open,
		Remedy:   "allow the user CONFIG GET, or look at the provider's settings",
	}
}

// examineCluster asks one node how it sees the cluster.
func examineCluster(ctx context.Context, client rueidis.Client) []semel.Finding {
	text, err := client.Do(ctx, client.B().ClusterInfo().Build()).ToString()
	if err != nil {
		return []semel.Finding{{
			Severity: semel.Notice,
			Subject:  "cluster_state",
			Found:    "could not look: " + err.Error(),
			Cost:     "not known: whether every key has a server",
			Remedy:   "allow the user CLUSTER INFO",
		}}
	}
	info := fields(strings.TrimPrefix(text, "txt:")) // a form of RESP3
	state := semel.Finding{Subject: "cluster_state", Found: info["cluster_state"]}
	if info["cluster_state"] != "ok" {
		state.Severity = semel.Broken
		state.Cost = "the cluster refuses claims, of all keys or of those whose master is down, and their messages wait"
		state.Remedy = "bring the masters back, or fail over to their replicas"
	}
	slots := semel.Finding{
		Subject: "cluster_slots",
		Found: fmt.Sprintf("%s assigned, %s in order, %s in doubt, %s failed", cmp.Or(info["cluster_slots_assigned"], "?"),
			cmp.Or(info["cluster_slots_ok"], "?"), cmp.Or(info["cluster_slots_pfail"], "?"), cmp.Or(info["cluster_slots_fail"], "?")),
	}
	if info["cluster_slots_ok"] != "16384" {
		slots.Severity = semel.Broken
		slots.Cost = "keys of slots without a server cannot be claimed, and their messages wait"
		slots.Remedy = "assign every slot to a master that runs: redis-cli --cluster check, then fix"
	}
	return []semel.Finding{state, slots, fullCoverage(ctx, client)}
}

func fullCoverage(ctx context.Context, client rueidis.Client) semel.Finding {
	const subject = "cluster-require-full-coverage"
	values, err := client.Do(ctx, client.B().ConfigGet().Parameter(subject).Build()).AsStrMap()
	p := patient{config: values, refused: err}
	value, unknown := p.parameter(subject, "whether one master that is down stops claims of all keys")
	if unknown != nil {
		return *unknown
	}
	f := semel.Finding{Subject: subject, Found: value}
	if value == "yes" {
		f.Severity = semel.Notice
		f.Cost = "while one master without a replica is down, claims of all keys are refused, and messages wait"
		f.Remedy = "CONFIG SET " + subject + " no, if the other keys should go on"
	}
	return f
}
