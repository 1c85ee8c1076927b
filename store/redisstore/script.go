package redisstore

import (
	"bytes"
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/semel-dev/semel"
)

// These are the sources of the scripts. record.lua precedes each of them.
var (
	//go:embed lua/record.lua
	recordLua string
	//go:embed lua/claim.lua
	claimLua string
	//go:embed lua/complete.lua
	completeLua string
	//go:embed lua/release.lua
	releaseLua string
	//go:embed lua/extend.lua
	extendLua string
	//go:embed lua/resolve.lua
	resolveLua string
	//go:embed lua/remove.lua
	removeLua string
	//go:embed lua/look.lua
	lookLua string
)

// script is one of the store's scripts. A script decides a batch of requests.
type script struct {
	verb string
	text string
	sha  string
	sets bool // the script reads the compact form
}

func newScript(verb, text string, sets bool) *script {
	text = recordLua + "\n" + text
	sum := sha1.Sum([]byte(text)) // the server identifies a script by this digest
	return &script{verb: verb, text: text, sha: hex.EncodeToString(sum[:]), sets: sets}
}

// scripts are the scripts of a store.
type scripts struct {
	claim, complete, release, extend, resolve, remove, look *script
}

func newScripts() scripts {
	return scripts{
		claim:    newScript("claim", claimLua, true),
		complete: newScript("complete", completeLua, true),
		release:  newScript("release", releaseLua, false),
		extend:   newScript("extend", extendLua, false),
		resolve:  newScript("resolve", resolveLua, false),
		remove:   newScript("remove", removeLua, true),
		look:     newScript("look", lookLua, true),
	}
}

// A run of a script has at most this many requests and bytes, so that the
// server can serve others in between.
const (
	maxUnits = 256
	maxBytes = 4 << 20
)

// A pipeline has at most this many commands, and about this many bytes, so that
// a call of any size takes bounded memory beyond its own.
const (
	maxPipeline      = 1024
	maxPipelineBytes = 16 << 20
)

// unit is one request on its way through a script.
type unit struct {
	at       int // its place in the call
	digest   semel.Digest
	from, to int // its place in requests.packed
}

// requests are those of one call, packed for a script. They share their memory,
// because a call has many.
type requests struct {
	units  []unit
	packed []byte
	// terms is how many bytes the requests begin with that are usually the same in a
	// whole call. differ is set if they are not.
	terms  int
	differ bool
	// more is added to the terms of the call.
	more []byte
}

func newRequests(n, each int) *requests {
	return &requests{units: make([]unit, 0, n), packed: make([]byte, 0, n*each)}
}

// add adds the request at a place of the call. It has the bytes that were
// appended to packed since the last one.
func (r *requests) add(at int, d semel.Digest) {
	from := 0
	if n := len(r.units); n > 0 {
		from = r.units[n-1].to
	}
	r.differ = r.differ || !bytes.Equal(r.packed[from:from+r.terms], r.packed[:r.terms])
	r.units = append(r.units, unit{at, d, from, len(r.packed)})
}

// sharedTerms returns the terms of all requests of the call, or nothing if they differ.
func (r *requests) sharedTerms() string {
	if r.differ {
		return ""
	}
	return string(r.packed[:r.terms]) + string(r.more)
}

// batch is the input of one run of a script.
type batch struct {
	group int
	units []unit
	bytes int
}

// run sends requests through a script and passes each answer to read. It returns
// the gravest error of the server or of read. After an error, run still reads
// the other answers of the same pipeline.
func (s *Store) run(ctx context.Context, sc *script, reqs *requests, read func(at int, answer string) error) error {
	for units := reqs.units; len(units) > 0; {
		batches := s.batches(units)
		units = nil
		for len(batches) > 0 {
			n := pipelined(batches)
			again, err := s.runPipeline(ctx, sc, reqs, batches[:n], read)
			if err != nil {
				return err
			}
			batches, units = batches[n:], append(units, again...)
		}
	}
	return nil
}

// pipelined returns how many of the batches go in one pipeline.
func pipelined(batches []batch) int {
	bytes := 0
	for i := range batches {
		if bytes += batches[i].bytes; i == maxPipeline || i > 0 && bytes > maxPipelineBytes {
			return i
		}
	}
	return len(batches)
}

// runPipeline returns the units whose answers the script left out.
func (s *Store) runPipeline(ctx context.Context, sc *script, reqs *requests, batches []batch, read func(at int, answer string) error) (again []unit, err error) {
	answers, err := s.send(ctx, sc, reqs, batches)
	for i := range batches {
		for j, answer := range answers[i] {
			u := &batches[i].units[j]
			if answer == "" {
				again = append(again, *u)
			} else if e := read(u.at, answer); e != nil {
				err = graver(err, e)
			}
		}
	}
	return again, err
}

// batches groups units by what one script may access. Without a cluster that is
// all units, and in a cluster the units of one hash tag. The order inside a
// group is kept.
func (s *Store) batches(units []unit) []batch {
	var list []batch
	last := make(map[int]int, 1) // the last batch of each group
	for i := range units {
		u := &units[i]
		group := 0
		if s.cluster {
			group = tagOf(&u.digest)
		}
		n, ok := last[group]
		if !ok || len(list[n].units) == maxUnits || list[n].bytes+u.to-u.from > maxBytes {
			n = len(list)
			list = append(list, batch{group: group})
			last[group] = n
			if !s.cluster {
				list[n].units = make([]unit, 0, min(len(units)-i, maxUnits))
			}
		}
		list[n].units = append(list[n].units, *u)
		list[n].bytes += u.to - u.from
	}
	return list
}

// send runs a script for each batch, in one pipeline, and returns the answers
// and the gravest error. It loads the script into a server that does not know
// it.
func (s *Store) send(ctx context.Context, sc *script, reqs *requests, batches []batch) ([][]string, error) {
	commands := make([]rueidis.Completed, len(batches), len(batches)+2)
	for i := range batches {
		keys, args := s.arguments(sc, reqs, &batches[i])
		commands[i] = s.client.B().Evalsha().Sha1(sc.sha).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()
	}
	results := s.do(ctx, commands)
	answers := make([][]string, len(batches))
	var gravest error
	for i := range batches {
		result := results[i]
		if e, ok := rueidis.IsRedisErr(result.Error()); ok && e.IsNoScript() {
			keys, args := s.arguments(sc, reqs, &batches[i])
			result = s.client.Do(ctx, s.client.B().Eval().Script(sc.text).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build())
		}
		reply, err := result.ToString()
		if err == nil {
			answers[i], err = cutAnswers(reply, len(batches[i].units))
		}
		if err != nil {
			gravest = graver(gravest, storeError(sc.verb, err))
		}
	}
	return answers, gravest
}

// cutAnswers returns the n answers in the reply of a script.
func cutAnswers(reply string, n int) ([]string, error) {
	answers := make([]string, n)
	ok := true
	for i := range answers {
		if answers[i], reply, ok = cutString(reply); !ok {
			return nil, fmt.Errorf("%d answers to %d requests", i, n)
		}
	}
	if reply != "" {
		return nil, fmt.Errorf("more answers than %d requests", n)
	}
	return answers, nil
}

// do sends commands in one pipeline. Once every reminderEvery it adds the
// commands of remind.
func (s *Store) do(ctx context.Context, commands []rueidis.Completed) []rueidis.RedisResult {
	n, reminder := len(commands), s.remind()
	if n == 1 && reminder == nil {
		return []rueidis.RedisResult{s.client.Do(ctx, commands[0])}
	}
	results := s.client.DoMulti(ctx, append(commands, reminder...)...)
	s.readReminder(results[n:])
	return results[:n]
}

// arguments returns the keys and arguments of one run of a script.
func (s *Store) arguments(sc *script, reqs *requests, b *batch) (keys, args []string) {
	compact := sc.sets && s.ring != nil
	text, length := b.join(reqs.packed)
	args = []string{"0", "0", text, reqs.sharedTerms(), length}
	stride := 1
	if compact {
		args[0], args[1] = s.sliceArg, s.graceArg
		stride += s.ring.places()
	}
	keys = append(make([]string, 0, 1+stride*len(b.units)), s.counterKey(b.group))
	var room [128]byte
	var names strings.Builder // of all records, which share its memory
	names.Grow(len(b.units) * s.nameLength())
	for i := range b.units {
		d := &b.units[i].digest
		start := names.Len()
		names.Write(s.appendRecordKey(room[:0], d))
		keys = append(keys, names.String()[start:])
		if compact {
			keys = s.appendSetKeys(keys, d)
			args = append(args, member(d))
		}
	}
	return keys, args
}

// join returns the requests of a batch as one argument, and their length if all
// have one length.
func (b *batch) join(packed []byte) (text, length string) {
	var all strings.Builder
	all.Grow(b.bytes + 4*len(b.units))
	var prefix [4]byte
	first, same := b.units[0].to-b.units[0].from, true
	for i := range b.units {
		u := &b.units[i]
		n := u.to - u.from
		same = same && n == first
		binary.LittleEndian.PutUint32(prefix[:], uint32(n))
		all.Write(prefix[:])
		all.Write(packed[u.from:u.to])
	}
	if same {
		length = strconv.Itoa(first)
	}
	return all.String(), length
}
