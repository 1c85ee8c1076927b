package redisstore

import (
	"cmp"
	"context"
	"crypto/rand"
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

// ExamineFilter looks at the filter that [NewFilter] would open with these
// options, and changes nothing: it makes none. Nil options are the zero options.
// It blocks for a few round trips. Errors are those of NewFilter.
func ExamineFilter(ctx context.Context, client rueidis.Client, opts *FilterOptions) ([]semel.Finding, error) {
	f, err := newFilterOf(client, opts)
	if err != nil {
		return nil, err
	}
	best, mine, err := f.wanted(ctx)
	if err != nil {
		return nil, err
	}
	made := semel.Finding{Subject: "filter"}
	answer := f.client.Do(ctx, f.client.B().Get().Key(f.name("settings")).Build())
	kept := mine
	if rueidis.IsRedisNil(answer.Error()) {
		made.Found = fmt.Sprintf("nobody has made %q yet", f.opts.Prefix)
	} else if kept, err = readSettings(answer); err != nil {
		return nil, err
	}
	if err := f.use(ctx, best, mine, kept); err != nil {
		return nil, err
	}
	if made.Found == "" {
		made.Found = fmt.Sprintf("%q is in use, in the form %s", f.opts.Prefix, f.opts.Form)
	}
	return []semel.Finding{made, {Subject: "rate", Found: fmt.Sprintf("%g", f.Rate())}}, nil
}

// permissionLua returns those commands that the user may not run on a key. It
// runs none of them. RPUSH is for the audit log.
const permissionLua = `
local key, missing = KEYS[1], {}
for _, command in ipairs({
  {'GET', key}, {'SET', key, 'v'}, {'DEL', key}, {'PTTL', key}, {'PEXPIREAT', key, '1'},
  {'SADD', key, '1'}, {'SREM', key, '1'}, {'SISMEMBER', key, '1'}, {'SCARD', key}, {'RPUSH', key, 'v'}, {'TIME'},
}) do
  if not redis.acl_check_cmd(unpack(command)) then missing[#missing + 1] = command[1] end
end
return missing`

// examinePermissions finds out whether the user may run what the store runs,
// without changing anything: scripts and listings are tried on a name that does
// not exist, and the server is asked about the rest.
func (s *Store) examinePermissions(ctx context.Context) semel.Finding {
	f := semel.Finding{Subject: "permissions", Found: "all that the store needs"}
	name, b := s.opts.Prefix+"{00}doctor "+rand.Text(), s.client.B()
	var missing, unseen []string
	note := func(what string, err error) {
		switch answer, ok := rueidis.IsRedisErr(err); {
		case err == nil, rueidis.IsRedisNil(err):
		case ok && strings.HasPrefix(answer.Error(), "NOPERM"):
			missing = append(missing, what)
		default:
			unseen = append(unseen, fmt.Sprintf("%s (%v)", what, err))
		}
	}
	known := s.client.Do(ctx, b.Evalsha().Sha1(strings.Repeat("0", 40)).Numkeys(1).Key(name).Build()).Error()
	if answer, ok := rueidis.IsRedisErr(known); ok && answer.IsNoScript() {
		known = nil
	}
	note("EVALSHA", known)
	refused, err := s.client.Do(ctx, b.Eval().Script(permissionLua).Numkeys(1).Key(name).Build()).AsStrSlice()
	if answer, ok := rueidis.IsRedisErr(err); ok && strings.Contains(answer.Error(), "acl_check_cmd") {
		err = nil // before Redis 7.0 the question cannot be asked
		unseen = append(unseen, "what scripts may do, which this version does not tell")
	}
	note("EVAL", err)
	missing = append(missing, refused...)
	if s.setGet {
		// Where the key does not exist XX changes nothing.
		note("SET", s.client.Do(ctx, b.Set().Key(name).Value("").Xx().Build()).Error())
	}
	for _, node := range s.client.Nodes() {
		note("SCAN", node.Do(ctx, node.B().Scan().Cursor(0).Match(escapeGlob(name)).Count(1).Build()).Error())
		note("MEMORY USAGE", node.Do(ctx, node.B().MemoryUsage().Key(name).Build()).Error())
		break
	}
	switch {
	case len(missing) == 1 && missing[0] == "RPUSH":
		f.Severity = semel.Notice
		f.Found = "all but RPUSH"
		f.Cost = "none for claims; keys cannot be removed or resolved by hand with this user, for want of the audit log"
		f.Remedy = "+rpush for the user of who does so"
	case len(missing) > 0:
		f.Severity = semel.Broken
		f.Found = "the user may not run " + strings.Join(missing, ", ")
		f.Cost = "claims, completions or listings are refused, and messages wait"
		f.Remedy = "ACL SETUSER with what the package documentation of store/redisstore lists"
	case len(unseen) > 0:
		f.Severity = semel.Notice
		f.Found = "could not look: " + strings.Join(unseen, "; ")
		f.Cost = "not known: whether the user may run all that the store needs"
	}
	return f
}
