package suite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/bench/internal/machine"
	"github.com/semel-dev/semel/bench/internal/records"
	"github.com/semel-dev/semel/test/services"
)

const (
	kafkaPartitions = 4
	kafkaIn         = "in"
	kafkaOut        = "out"
	kafkaChangelog  = "changelog"
	kafkaGroup      = "copy"
	// kafkaPoll is the pause between two reads of the committed offsets.
	kafkaPoll = 40 * time.Millisecond
	// tick is the unit of processor time in Linux.
	tick = 10 * time.Millisecond
	// kafkaLimit limits the time that a program may take.
	kafkaLimit = 10 * time.Minute
)

// kafkaProgram returns the command of a program that moves records from topic "in" to
// topic "out" as a member of group "copy", until SIGTERM. It stores its files in dir,
// and finds them there after a restart.
type kafkaProgram func(ctx context.Context, addrs []string, dir string) (*exec.Cmd, error)

// kafkaCluster is a new Kafka with the topics of a benchmark.
type kafkaCluster struct {
	addrs   []string
	client  *kadm.Client
	servers []*services.Server
}

// startKafka starts one or three nodes, with empty topics of this many partitions.
func startKafka(ctx context.Context, nodes, partitions int) (_ *kafkaCluster, err error) {
	c := &kafkaCluster{}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	opts := &services.KafkaOptions{HeapMiB: 512}
	if nodes == 1 {
		server, err := services.StartKafka(ctx, opts)
		if err != nil {
			return nil, err
		}
		c.servers, c.addrs = []*services.Server{server}, []string{server.Addr()}
	} else {
		cluster, err := services.StartKafkaCluster(ctx, opts)
		if err != nil {
			return nil, err
		}
		c.servers, c.addrs = cluster.Nodes, cluster.Addrs()
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(c.addrs...))
	if err != nil {
		return nil, err
	}
	c.client = kadm.NewClient(client)
	made, err := c.client.CreateTopics(ctx, int32(partitions), int16(nodes), nil, kafkaIn, kafkaOut, kafkaChangelog)
	if err := errors.Join(err, made.Error()); err != nil {
		return nil, err
	}
	return c, c.settle(ctx)
}

// settle has Kafka create its internal topics for groups and transactions. Otherwise the
// first program that uses one waits for it.
func (c *kafkaCluster) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	ticker := time.NewTicker(kafkaPoll)
	defer ticker.Stop()
	for {
		err := errors.Join(c.client.FindGroupCoordinators(ctx, kafkaGroup).Error(), c.client.FindTxnCoordinators(ctx, kafkaGroup).Error())
		if err == nil {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return err
		}
	}
}

func (c *kafkaCluster) close() error {
	if c.client != nil {
		c.client.Close()
	}
	var failed []error
	for _, server := range c.servers {
		failed = append(failed, server.Close())
	}
	return errors.Join(failed...)
}

// running is a running program.
type running struct {
	cmd        *exec.Cmd
	complaints *os.File
	ended      chan struct{} // closed after err is set
	err        error
}

func startProgram(ctx context.Context, c *kafkaCluster, program kafkaProgram, dir string) (*running, error) {
	cmd, err := program(ctx, c.addrs, dir)
	if err != nil {
		return nil, err
	}
	complaints, err := os.Create(filepath.Join(dir, "complaints"))
	if err != nil {
		return nil, err
	}
	defer complaints.Close()
	cmd.Stdout, cmd.Stderr = complaints, complaints
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	r := &running{cmd: cmd, complaints: complaints, ended: make(chan struct{})}
	go func() {
		r.err = cmd.Wait()
		close(r.ended)
	}()
	return r, nil
}

// stop ends the program with SIGTERM.
func (r *running) stop() error {
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("%w: %s", err, r.said())
	}
	timer := time.NewTimer(30 * time.Second)
	defer timer.Stop()
	select {
	case <-r.ended:
		// After an orderly end, Java exits with the number of the signal, and
		// open-outbox/relay with 1.
		status := r.cmd.ProcessState.ExitCode()
		if r.err != nil && status != 128+int(syscall.SIGTERM) && (status != 1 || filepath.Base(r.cmd.Path) != openOutboxName) {
			return fmt.Errorf("%s: %w: %s", r.cmd.Path, r.err, r.said())
		}
		return nil
	case <-timer.C:
		return errors.Join(fmt.Errorf("%s did not stop: %s", r.cmd.Path, r.said()), r.kill())
	}
}

func (r *running) kill() error {
	err := r.cmd.Process.Kill()
	<-r.ended
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

func (r *running) said() string {
	text, err := os.ReadFile(r.complaints.Name())
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-4<<10):])
}

// keep moves the program's messages out of the directory, which the next side empties.
func (r *running) keep() error {
	kept := fmt.Sprintf("%s-ended-%d.log", filepath.Dir(r.complaints.Name()), time.Now().UnixNano())
	if err := os.Rename(r.complaints.Name(), kept); err != nil {
		return err
	}
	return fmt.Errorf("all its messages are in %s", kept)
}

// until polls until a condition holds, or until the program has ended.
func (r *running) until(ctx context.Context, what string, happened func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, kafkaLimit)
	defer cancel()
	ticker := time.NewTicker(kafkaPoll)
	defer ticker.Stop()
	for {
		if ok, err := happened(ctx); ok || err != nil && !kerr.IsRetriable(err) {
			return err
		}
		select {
		case <-ticker.C:
		case <-r.ended:
			err := fmt.Errorf("%s ended before %s: %v: %s", r.cmd.Path, what, r.err, r.said())
			if filepath.Base(r.cmd.Path) == streamsName {
				err = fmt.Errorf("%w: %w", errPeerEnded, err)
			}
			return errors.Join(err, r.keep())
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w: %s", what, ctx.Err(), r.said())
		}
	}
}

// written reports whether the output has a record, committed or not.
func (c *kafkaCluster) written(ctx context.Context) (already int, some bool, err error) {
	ends, err := c.client.ListEndOffsets(ctx, kafkaOut)
	ends.Each(func(o kadm.ListedOffset) { some = some || o.Offset > 0 })
	return 0, some, err
}

// done reports whether the group has committed the whole input. The input has no
// transactions, so its end offsets count records.
func (c *kafkaCluster) done(group string) func(context.Context) (bool, error) {
	return func(ctx context.Context) (bool, error) {
		ends, err := c.client.ListEndOffsets(ctx, kafkaIn)
		if err != nil {
			return false, err
		}
		committed, err := c.client.FetchOffsetsForTopics(ctx, group, kafkaIn)
		if err != nil {
			return false, err
		}
		all := true
		ends.Each(func(o kadm.ListedOffset) {
			at, ok := committed.Lookup(kafkaIn, o.Partition)
			all = all && (o.Offset == 0 || ok && at.At >= o.Offset)
		})
		return all, nil
	}
}

// move measures a program on the whole input. The span starts with the first record that
// the program writes, and ends when all records are committed. The figures are records
// per second and processor time in that span, and peak memory. move compares the output
// with the input.
func (e *Env) move(ctx context.Context, name string, nodes int, in records.Input, distinct bool, program kafkaProgram) (_ map[string]float64, err error) {
	dir, err := e.fresh("kafka")
	if err != nil {
		return nil, err
	}
	c, err := startKafka(ctx, nodes, kafkaPartitions)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	if err := in.Fill(ctx, c.addrs, kafkaIn, 0, in.Records); err != nil {
		return nil, err
	}
	values, err := c.measure(ctx, name, in.Records, program, dir, c.written, c.done(kafkaGroup))
	if err != nil {
		return nil, err
	}
	return values, in.Verify(ctx, c.addrs, kafkaOut, distinct)
}

// measure runs a program on the whole input of n records and stops it. The span starts with
// the first effect. The records that began reports as done by then do not count.
func (c *kafkaCluster) measure(ctx context.Context, name string, n int, program kafkaProgram, dir string, began func(context.Context) (int, bool, error), ended func(context.Context) (bool, error)) (_ map[string]float64, err error) {
	r, err := startProgram(ctx, c, program, dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.kill()) }()
	if err := r.until(ctx, "its first effect", func(ctx context.Context) (bool, error) {
		already, ok, err := began(ctx)
		if ok {
			n -= already
		}
		return ok, err
	}); err != nil {
		return nil, err
	}
	start := time.Now()
	before, err := processorTime(r.cmd.Process.Pid)
	if err != nil {
		return nil, err
	}
	if err := r.until(ctx, "the end of its input", ended); err != nil {
		return nil, err
	}
	took := time.Since(start)
	after, err := processorTime(r.cmd.Process.Pid)
	if err != nil {
		return nil, err
	}
	peak, err := peakMiB(r.cmd.Process.Pid)
	if err != nil {
		return nil, err
	}
	return map[string]float64{
		name:             float64(n) / took.Seconds(),
		name + "-cpu":    max(after-before, tick).Seconds(),
		name + "-memory": peak,
	}, r.stop()
}

// comeBack kills a program, writes further records, and starts the program again
// immediately. It measures the time from the kill until these records are committed.
func (e *Env) comeBack(ctx context.Context, name string, in records.Input, further int, program kafkaProgram) (_ map[string]float64, err error) {
	dir, err := e.fresh("kafka")
	if err != nil {
		return nil, err
	}
	c, err := startKafka(ctx, 1, kafkaPartitions)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	if err := in.Fill(ctx, c.addrs, kafkaIn, 0, in.Records-further); err != nil {
		return nil, err
	}
	first, err := startProgram(ctx, c, program, dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, first.kill()) }()
	if err := first.until(ctx, "the end of its input", c.done(kafkaGroup)); err != nil {
		return nil, err
	}
	start := time.Now()
	if err := first.kill(); err != nil {
		return nil, err
	}
	second, err := startProgram(ctx, c, program, dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, second.kill()) }()
	if err := in.Fill(ctx, c.addrs, kafkaIn, in.Records-further, in.Records); err != nil {
		return nil, err
	}
	if err := second.until(ctx, "the further records", c.done(kafkaGroup)); err != nil {
		return nil, err
	}
	took := time.Since(start)
	if err := second.stop(); err != nil {
		return nil, err
	}
	return map[string]float64{name: took.Seconds()}, in.Verify(ctx, c.addrs, kafkaOut, true)
}

// processorTime returns the processor time of a running process.
func processorTime(pid int) (time.Duration, error) { return times(pid, 11, 12) }

// familyTime is processorTime for a process and all its descendants, also those that have
// ended.
func familyTime(pid int) (time.Duration, error) {
	sum, err := times(pid, 11, 12, 13, 14)
	if err != nil {
		return 0, err
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", pid))
	if err != nil {
		return 0, err
	}
	for _, text := range strings.Fields(string(children)) {
		child, err := strconv.Atoi(text)
		if err != nil {
			return 0, err
		}
		of, err := familyTime(child)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ESRCH) { // it has just ended
			return 0, err
		}
		sum += of
	}
	return sum, nil
}

// times adds fields of the state of a process that are times in ticks.
func times(pid int, fields ...int) (sum time.Duration, err error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The fields are counted from behind the name.
	list := strings.Fields(string(content[strings.LastIndexByte(string(content), ')')+1:]))
	for _, i := range fields {
		if i >= len(list) {
			return 0, fmt.Errorf("the state of process %d is %q", pid, content)
		}
		n, err := strconv.Atoi(list[i])
		if err != nil {
			return 0, err
		}
		sum += time.Duration(n) * tick
	}
	return sum, nil
}

// peakMiB returns the peak memory of a running process.
func peakMiB(pid int) (float64, error) {
	text, err := machine.Field(fmt.Sprintf("/proc/%d/status", pid), "VmHWM")
	if err != nil {
		return 0, err
	}
	var kib float64
	_, err = fmt.Sscanf(text, "%f kB", &kib)
	return kib / 1024, err
}
