package redisstore

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"

	"github.com/redis/rueidis"

	"github.com/semel-dev/semel"
)

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
