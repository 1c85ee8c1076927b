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
	"github.com/semel-dev/semel/doctor"
)

// Examine checks whether the servers are configured to keep the store's promise. Each
// check yields one finding, even if all is well. An error means that the examination
// itself failed; it comes with the findings so far. Examine sends a few read-only
// commands to every master. If the server refuses one of them, a finding says so. With several
// masters, each finding names its master.
func (s *Store) Examine(ctx context.Context) ([]doctor.Finding, error) {
	return Examine(ctx, s.client, &s.opts)
}

// Examine is [Store.Examine] without a store. Use it for servers on which a
// store with these options cannot be opened, such as a replica or a server
// without free memory. Nil options are the zero options.
func Examine(ctx context.Context, client rueidis.Client, opts *Options) ([]doctor.Finding, error) {
	s := &Store{client: client, opts: opts.withDefaults()}
	if err := s.greet(ctx); err != nil {
		return nil, err
	}
	nodes := s.client.Nodes()
	var findings []doctor.Finding
	var failed []error
	masters := 0
	for _, addr := range slices.Sorted(maps.Keys(nodes)) {
		p, err := readServerState(ctx, addr, nodes[addr])
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
		findings = append(findings, doctor.Finding{
			Severity: doctor.Broken,
			Subject:  "node",
			Found:    err.Error(),
			Cost:     "the keys of this master cannot be claimed, and their messages wait",
			Remedy:   "start it, or take it out of the cluster",
		})
	}
	if s.cluster {
		findings = append(findings, examineCluster(ctx, s.client)...)
	}
	findings = append(findings, s.examineAgreement(ctx), s.examinePermissions(ctx))
	return findings, nil
}

func (s *Store) examine(p *serverState) []doctor.Finding {
	findings := []doctor.Finding{p.server(), p.connection(), p.role(), p.policy(), p.evicted(), p.memory()}
	findings = append(findings, p.log(s.opts.Persistence)...)
	findings = append(findings, p.snapshots(), p.replicas(), p.minReplicas(), p.clock(), p.scripts())
	if s.opts.Compact != nil {
		findings = append(findings, p.packing())
	}
	return findings
}

// serverState is one server and its answers.
type serverState struct {
	addr   string
	info   map[string]string
	config map[string]string
	// refused is the error of CONFIG GET, if any.
	refused error
	// ahead is how far the server's clock is ahead of the local clock. doubt is
	// the possible error.
	ahead, doubt time.Duration
	// secured and plain report whether the connection uses TLS. If neither is
	// set, that is not known.
	secured, plain bool
}

// asked has the parameters that INFO does not show.
var asked = [...]string{"appendfsync", "save", "min-replicas-to-write", "min-replicas-max-lag", "set-max-intset-entries"}

// readServerState sends all questions to a server. It needs INFO and TIME. CONFIG is
// often forbidden, and the findings then say what is missing.
func readServerState(ctx context.Context, addr string, node rueidis.Client) (*serverState, error) {
	p := &serverState{addr: addr, config: map[string]string{}}
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

// number returns a number of INFO, or 0 if INFO does not have it.
func (p *serverState) number(name string) int64 {
	n, err := strconv.ParseInt(p.info[name], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// parameter returns a value of the configuration, or a finding which says that
// the value is not available and what remains open.
func (p *serverState) parameter(name, open string) (string, *doctor.Finding) {
	if value, ok := p.config[name]; ok {
		return value, nil
	}
	why := "the server has no such parameter"
	if p.refused != nil {
		why = "CONFIG GET is refused: " + p.refused.Error()
	}
	return "", &doctor.Finding{
		Severity: doctor.Notice,
		Subject:  name,
		Found:    "not checked: " + why,
		Cost:     "not known: " + open,
		Remedy:   "allow the user CONFIG GET, or check the settings of the provider",
	}
}

// examineCluster asks one node for its view of the cluster.
func examineCluster(ctx context.Context, client rueidis.Client) []doctor.Finding {
	text, err := client.Do(ctx, client.B().ClusterInfo().Build()).ToString()
	if err != nil {
		return []doctor.Finding{{
			Severity: doctor.Notice,
			Subject:  "cluster_state",
			Found:    "not checked: " + err.Error(),
			Cost:     "not known: whether every key has a server",
			Remedy:   "allow the user CLUSTER INFO",
		}}
	}
	info := fields(strings.TrimPrefix(text, "txt:")) // RESP3 prefixes the text
	state := doctor.Finding{Subject: "cluster_state", Found: info["cluster_state"]}
	if info["cluster_state"] != "ok" {
		grade(&state, doctor.Broken, "the cluster refuses claims, of all keys or of those whose master is down, and their messages wait", "bring the masters back, or fail over to their replicas")
	}
	slots := doctor.Finding{
		Subject: "cluster_slots",
		Found: fmt.Sprintf("%s assigned, %s in order, %s in doubt, %s failed", cmp.Or(info["cluster_slots_assigned"], "?"),
			cmp.Or(info["cluster_slots_ok"], "?"), cmp.Or(info["cluster_slots_pfail"], "?"), cmp.Or(info["cluster_slots_fail"], "?")),
	}
	if info["cluster_slots_ok"] != "16384" {
		grade(&slots, doctor.Broken, "keys of slots without a server cannot be claimed, and their messages wait", "run redis-cli --cluster check, then --cluster fix, so that every slot has a running master")
	}
	return []doctor.Finding{state, slots, fullCoverage(ctx, client)}
}

func fullCoverage(ctx context.Context, client rueidis.Client) doctor.Finding {
	const subject = "cluster-require-full-coverage"
	values, err := client.Do(ctx, client.B().ConfigGet().Parameter(subject).Build()).AsStrMap()
	p := serverState{config: values, refused: err}
	value, unknown := p.parameter(subject, "whether one master that is down stops claims of all keys")
	if unknown != nil {
		return *unknown
	}
	f := doctor.Finding{Subject: subject, Found: value}
	if value == "yes" {
		grade(&f, doctor.Notice, "while one master without a replica is down, claims of all keys are refused, and messages wait", "CONFIG SET "+subject+" no, if the other keys must stay available")
	}
	return f
}

// ExamineFilter examines the filter that [NewFilter] would open with these
// options. It changes nothing and creates no filter. Nil options are the zero
// options. It blocks for a few round trips. It returns the errors of NewFilter.
func ExamineFilter(ctx context.Context, client rueidis.Client, opts *FilterOptions) ([]doctor.Finding, error) {
	f, err := newFilterOf(client, opts)
	if err != nil {
		return nil, err
	}
	best, mine, err := f.wanted(ctx)
	if err != nil {
		return nil, err
	}
	made := doctor.Finding{Subject: "filter"}
	answer := f.client.Do(ctx, f.client.B().Get().Key(f.name("settings")).Build())
	kept := mine
	if rueidis.IsRedisNil(answer.Error()) {
		made.Found = fmt.Sprintf("the filter %q does not exist yet", f.opts.Prefix)
	} else if kept, err = readSettings(answer); err != nil {
		return nil, err
	}
	if err := f.use(ctx, best, mine, kept); err != nil {
		return nil, err
	}
	if made.Found == "" {
		made.Found = fmt.Sprintf("%q is in use, in the form %s", f.opts.Prefix, f.opts.Form)
	}
	return []doctor.Finding{made, {Subject: "rate", Found: fmt.Sprintf("%g", f.Rate())}}, nil
}

// Permissions are the commands that an ACL user needs on the keys of a store or a
// filter, as rules of ACL SETUSER; see the package documentation.
const Permissions = "+ping +select +info +time +eval +evalsha +get +set +del +pttl +pexpireat +sadd +srem +sismember +scard +getrange +strlen +scan +memory|usage +rpush +bitfield +incrby +bf.insert +bf.exists +bf.mexists +bf.info +cluster|slots +cluster|shards +cluster|info"

// permissionLua returns the commands that the user may not run on a key. It
// runs none of them. The audit log needs RPUSH.
const permissionLua = `
local key, missing = KEYS[1], {}
for _, command in ipairs({
  {'GET', key}, {'SET', key, 'v'}, {'DEL', key}, {'PTTL', key}, {'PEXPIREAT', key, '1'},
  {'SADD', key, '1'}, {'SREM', key, '1'}, {'SISMEMBER', key, '1'}, {'SCARD', key}, {'RPUSH', key, 'v'}, {'TIME'},
}) do
  if not redis.acl_check_cmd(unpack(command)) then missing[#missing + 1] = command[1] end
end
return missing`

// examinePermissions finds out whether the user may run the commands of the
// store, without changing anything. It tries scripts and listings on a name
// that does not exist, and asks the server about other commands.
func (s *Store) examinePermissions(ctx context.Context) doctor.Finding {
	f := doctor.Finding{Subject: "permissions", Found: "all that the store needs"}
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
		err = nil // Redis before 7.0 does not have acl_check_cmd
		unseen = append(unseen, "the commands inside scripts, which this version of the server does not report")
	}
	note("EVAL", err)
	missing = append(missing, refused...)
	if s.setGet {
		// If the key does not exist, XX changes nothing.
		note("SET", s.client.Do(ctx, b.Set().Key(name).Value("").Xx().Build()).Error())
	}
	for _, node := range s.client.Nodes() {
		note("SCAN", node.Do(ctx, node.B().Scan().Cursor(0).Match(escapeGlob(name)).Count(1).Build()).Error())
		note("MEMORY USAGE", node.Do(ctx, node.B().MemoryUsage().Key(name).Build()).Error())
		break
	}
	switch {
	case len(missing) == 1 && missing[0] == "RPUSH":
		f.Found = "all but RPUSH"
		grade(&f, doctor.Notice, "none for claims; this user cannot remove or resolve keys by hand, because it cannot write the audit log", "grant +rpush to the user who changes keys by hand")
	case len(missing) > 0:
		f.Found = "the user may not run " + strings.Join(missing, ", ")
		grade(&f, doctor.Broken, "claims, completions or listings are refused, and messages wait", "in redis-cli, ACL SETUSER USER ~"+s.opts.Prefix+"* "+Permissions+" (USER is the user of this connection)")
	case len(unseen) > 0:
		f.Found = "not checked: " + strings.Join(unseen, "; ")
		grade(&f, doctor.Notice, "not known whether the user may run all commands of the store", "")
	}
	return f
}
