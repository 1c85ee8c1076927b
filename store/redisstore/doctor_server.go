package redisstore

import (
	"cmp"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/semel-dev/semel/doctor"
)

// These methods each check one property of a server. Each finding says what the
// property costs. While the store refuses claims, nothing is lost. A forgotten
// key allows a second effect.

// grade says how bad a finding is, what it costs and what to do about it.
func grade(f *doctor.Finding, severity doctor.Severity, cost, remedy string) {
	f.Severity, f.Cost, f.Remedy = severity, cost, remedy
}

func (p *serverState) server() doctor.Finding {
	f := doctor.Finding{Subject: "server"}
	name, version := "Redis", p.info["redis_version"]
	if other := p.info["server_name"]; other != "" && other != "redis" {
		name, version = other, cmp.Or(p.info[other+"_version"], version)
	}
	f.Found = fmt.Sprintf("%s %s, %s", name, version, cmp.Or(p.info["redis_mode"], p.info["server_mode"], "mode unknown"))
	switch major, minor, err := versionOf(version); {
	case err != nil:
		grade(&f, doctor.Notice, "not known whether the server has all commands of the store", "")
	case name == "Redis" && (major < 6 || major == 6 && minor < 2):
		grade(&f, doctor.Broken, "the store needs Redis 6.2 or later", "upgrade the server")
	case name != "Redis" && name != "valkey":
		grade(&f, doctor.Notice, "the store is tested with Redis and Valkey only", "")
	}
	return f
}

func (p *serverState) connection() doctor.Finding {
	f := doctor.Finding{Subject: "connection"}
	host, _, _ := net.SplitHostPort(p.addr)
	local := host == "localhost" || net.ParseIP(host).IsLoopback()
	switch {
	case p.secured:
		f.Found = "TLS"
	case p.plain && local:
		f.Found = "plain, inside this machine"
	case p.plain:
		f.Found = "plain"
		grade(&f, doctor.Notice, "an attacker in the network reads the password and can answer instead of the server, which voids every promise", "use rediss://, unless the network is trusted")
	default:
		f.Found = "not checked: the client was not made by redisstore"
		grade(&f, doctor.Notice, "not known whether an attacker in the network can read and answer", "")
	}
	return f
}

func (p *serverState) role() doctor.Finding {
	f := doctor.Finding{Subject: "role", Found: p.info["role"]}
	if f.Found != "master" {
		f.Found += " of " + p.info["master_host"] + ":" + p.info["master_port"]
		grade(&f, doctor.Broken, "a replica refuses claims, and it may show outdated keys", "connect to the master, or through Sentinel, which finds the master")
	}
	return f
}

func (p *serverState) policy() doctor.Finding {
	f := doctor.Finding{Subject: "maxmemory-policy", Found: p.info["maxmemory_policy"]}
	switch {
	case f.Found == "":
		f.Found = "not checked: INFO does not have it"
		grade(&f, doctor.Notice, "not known whether the server forgets keys when memory is short", "")
	case f.Found != "noeviction":
		grade(&f, doctor.Broken, "when memory is short the server silently forgets keys before their window ends, and their messages can take effect a second time", "run CONFIG SET maxmemory-policy noeviction; if other users need eviction, give the store a server of its own")
	}
	return f
}

func (p *serverState) evicted() doctor.Finding {
	n := p.number("evicted_keys")
	f := doctor.Finding{Subject: "evicted_keys", Found: strconv.FormatInt(n, 10) + " since the server started"}
	if n > 0 {
		grade(&f, doctor.Broken, "each may have been a key inside its window, whose message can take effect a second time", "set maxmemory-policy to noeviction and give the server more memory")
	}
	return f
}

func (p *serverState) memory() doctor.Finding {
	used, limit := p.number("used_memory"), p.number("maxmemory")
	f := doctor.Finding{Subject: "maxmemory"}
	if limit == 0 {
		f.Found = fmt.Sprintf("no limit; the server uses %s of the machine's %s", size(used), size(p.number("total_system_memory")))
		grade(&f, doctor.Notice, "when the machine runs out of memory, the system kills the server; with a limit the server would refuse new keys", "set maxmemory below the memory that the machine can spare, with maxmemory-policy noeviction")
		return f
	}
	share := 100 * float64(used) / float64(limit)
	f.Found = fmt.Sprintf("%s of %s used, %.0f %%", size(used), size(limit), share)
	switch {
	case share >= 90:
		f.Severity = doctor.Warning
	case share >= 75:
		f.Severity = doctor.Notice
	default:
		return f
	}
	f.Cost = "at the limit the server refuses new keys, and their messages wait; nothing is lost"
	f.Remedy = "raise maxmemory, shorten windows, or use the compact form"
	return f
}

func size(bytes int64) string {
	if bytes < 1<<30 {
		return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30))
}

// log checks the append-only file, and compares it with the persistence in the
// options.
func (p *serverState) log(told Persistence) []doctor.Finding {
	const turnOn = "run CONFIG SET appendonly yes, and write the same to the server's configuration file"
	on := doctor.Finding{Subject: "appendonly", Found: "yes"}
	if p.info["aof_enabled"] != "1" {
		on.Found = "no"
		grade(&on, doctor.Warning, "a restart forgets all keys, or the keys since the last snapshot, and their messages can take effect a second time", turnOn)
		if told >= Logged {
			grade(&on, doctor.Broken, "the options say that keys survive a restart, but they do not: "+on.Cost, on.Remedy)
		}
		return []doctor.Finding{on}
	}
	if status := p.info["aof_last_write_status"]; status != "" && status != "ok" {
		on.Found = "yes, but the last write failed: " + status
		grade(&on, doctor.Broken, "the server refuses claims until its disk works; messages wait", "check the server's log and disk")
	}
	fsync, unknown := p.parameter("appendfsync", "whether a loss of power forgets keys")
	if unknown != nil {
		return []doctor.Finding{on, *unknown}
	}
	f := doctor.Finding{Subject: "appendfsync", Found: fsync}
	switch fsync {
	case "always":
	case "everysec":
		f.Severity = doctor.Notice
		if told >= Logged {
			f.Severity = doctor.Warning
		}
		// A write to the file waits for up to two seconds while the previous
		// sync runs. The answer does not wait for that write.
		f.Cost = "when the server is killed (kill -9, out of memory, a crash) or loses power, it forgets keys of the last one or two seconds, and their messages can take effect a second time; in tests under load every second kill forgot keys"
		f.Remedy = "run CONFIG SET appendfsync always, and set persistence: synced, if that matters more than speed; stop the server with SIGTERM or SHUTDOWN, which forgets nothing"
	default:
		grade(&f, doctor.Warning, "after a loss of power the keys of about the last half minute are forgotten, and their messages can take effect a second time", "run CONFIG SET appendfsync everysec, or always")
	}
	if told == Synced && fsync != "always" {
		grade(&f, doctor.Broken, "the options say that keys survive a loss of power, but they do not: "+f.Cost, "run CONFIG SET appendfsync always")
	}
	return []doctor.Finding{on, f}
}

func (p *serverState) snapshots() doctor.Finding {
	f := doctor.Finding{Subject: "save"}
	if status := p.info["rdb_last_bgsave_status"]; status != "" && status != "ok" {
		f.Found = "the last snapshot failed: " + status
		grade(&f, doctor.Warning, "by default the server then refuses claims, and messages wait", "check the server's log and disk")
		return f
	}
	save, unknown := p.parameter("save", "how much a restart forgets")
	switch logged := p.info["aof_enabled"] == "1"; {
	case logged:
		f.Found = "not needed: the append-only file has all keys"
	case unknown != nil:
		return *unknown
	case save == "":
		f.Found = "none"
		grade(&f, doctor.Warning, "a restart forgets all keys, and their messages can take effect a second time", "turn the append-only file on")
	default:
		f.Found = save
		grade(&f, doctor.Warning, "a restart forgets the keys since the last snapshot, and their messages can take effect a second time", "turn the append-only file on")
	}
	return f
}

// lagAllowed is the number of seconds for which a replica may be silent before
// it counts as behind.
const lagAllowed = 10

func (p *serverState) replicas() doctor.Finding {
	f := doctor.Finding{Subject: "replicas"}
	n := p.number("connected_slaves")
	f.Found = fmt.Sprintf("%d connected", n)
	if n == 0 {
		grade(&f, doctor.Notice, "while the server is down no key can be claimed, and messages wait", "add a replica, with Sentinel or in a cluster, if that outage is too long")
		return f
	}
	grade(&f, doctor.Notice, "replication is asynchronous: a failover forgets the keys that had not reached the replica, and their messages can take effect a second time", "")
	for i := range n {
		state := p.info["slave"+strconv.FormatInt(i, 10)]
		lag, err := strconv.Atoi(after(state, "lag="))
		if online := after(state, "state="); online != "online" || err != nil || lag > lagAllowed {
			f.Severity = doctor.Warning
			f.Found += fmt.Sprintf("; %s:%s is %s and %s s behind", after(state, "ip="), after(state, "port="), cmp.Or(online, "silent"), after(state, "lag="))
			f.Remedy = "find out why the replica does not follow"
		}
	}
	return f
}

// after returns the value of name in a list name=value,name=value.
func after(list, name string) string {
	for part := range strings.SplitSeq(list, ",") {
		if value, ok := strings.CutPrefix(part, name); ok {
			return value
		}
	}
	return ""
}

func (p *serverState) minReplicas() doctor.Finding {
	const subject = "min-replicas-to-write"
	value, unknown := p.parameter(subject, "whether a master that is cut off still grants claims")
	f := doctor.Finding{Subject: subject, Found: value}
	switch {
	case unknown != nil:
		return *unknown
	case p.number("connected_slaves") == 0 && value == "0":
		f.Found = "0, without replicas"
	case value == "0":
		grade(&f, doctor.Warning, "a master that is cut off from its replicas still grants claims, and a failover forgets all of these claims", "run CONFIG SET min-replicas-to-write 1; the master then refuses claims after min-replicas-max-lag seconds")
	default:
		lag := p.config["min-replicas-max-lag"]
		f.Found = fmt.Sprintf("%s, within %s s", value, lag)
		need, _ := strconv.ParseInt(value, 10, 64)
		if good := p.number("min_slaves_good_slaves"); good < need {
			f.Found += fmt.Sprintf("; %d follow", good)
			grade(&f, doctor.Broken, "the server refuses claims (NOREPLICAS), and messages wait", "bring the replicas back")
		}
	}
	return f
}

func (p *serverState) clock() doctor.Finding {
	f := doctor.Finding{Subject: "clock"}
	direction, apart := "ahead of", p.ahead
	if apart < 0 {
		direction, apart = "behind", -apart
	}
	f.Found = fmt.Sprintf("%v %s this machine, give or take %v", apart.Round(time.Millisecond), direction, p.doubt.Round(time.Microsecond))
	switch apart -= p.doubt; {
	case apart >= time.Minute:
		f.Severity = doctor.Warning
	case apart >= time.Second:
		f.Severity = doctor.Notice
	default:
		return f
	}
	f.Cost = "leases and windows use only the server's clock and hold; the check for late messages compares the message's time with that clock, so it is wrong by this difference"
	f.Remedy = "synchronize both clocks with NTP"
	return f
}

// slowScript is the duration from which a script is worth a finding. While a
// script runs, the server does nothing else.
const slowScript = 10 * time.Millisecond

func (p *serverState) scripts() doctor.Finding {
	f := doctor.Finding{Subject: "evalsha"}
	stats := p.info["cmdstat_evalsha"]
	calls, mean := after(stats, "calls="), after(stats, "usec_per_call=")
	if calls == "" {
		f.Found = "no script has run yet"
		return f
	}
	f.Found = fmt.Sprintf("%s scripts, %s µs on average", calls, mean)
	slow := mean
	if tail := after(p.info["latency_percentiles_usec_evalsha"], "p99="); tail != "" {
		f.Found += fmt.Sprintf(", 99 %% within %s µs", tail)
		slow = tail
	}
	if micros, err := strconv.ParseFloat(slow, 64); err == nil && micros >= float64(slowScript.Microseconds()) {
		grade(&f, doctor.Notice, "while a script runs the server answers no other call, and all claims wait", "use a faster server, or find out which program runs slow scripts")
	}
	return f
}

func (p *serverState) packing() doctor.Finding {
	const subject = "set-max-intset-entries"
	value, unknown := p.parameter(subject, "whether the compact form saves memory")
	if unknown != nil {
		return *unknown
	}
	f := doctor.Finding{Subject: subject, Found: value}
	if n, err := strconv.Atoi(value); err != nil || n < usualSetLimit {
		grade(&f, doctor.Notice, "sets with more members are not packed and take several times the memory; no key is lost", fmt.Sprintf("run CONFIG SET %s %d", subject, usualSetLimit))
	}
	return f
}
