package examples_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/semel-dev/semel/store/redisstore"
	"github.com/semel-dev/semel/test/services/servicestest"
)

func TestRedisWorkersTakeOverJobs(t *testing.T) {
	t.Parallel()
	url, stream := servers.Redis(t), servicestest.Prefix()+"jobs"
	client, err := redisstore.NewClient(t.Context(), url, &redisstore.ClientOptions{Timeout: time.Minute, ConnectTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	// Keys are shared with other runs on this server, so each run has its own ids.
	one, two := stream+"-1", stream+"-2"
	send := func(id string) {
		t.Helper()
		if err := client.Do(t.Context(), client.B().Xadd().Key(stream).Id("*").FieldValue().FieldValue("id", id).Build()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	worker := func(work string) *program {
		t.Helper()
		return start(t, []string{"REDIS_URL=" + url}, "workers-redis", "-stream", stream, "-lease", "4s", "-work", work)
	}
	check := func(id string, by *program) {
		t.Helper()
		fields, err := client.Do(t.Context(), client.B().Hgetall().Key(stream+":result:"+id).Build()).AsStrMap()
		if want := fmt.Sprint("worker-", by.command.Process.Pid); err != nil || fields["times"] != "1" || fields["by"] != want {
			t.Errorf("%s: %v, %v, want it done once by %s", id, fields, err, want)
		}
	}

	send(one)
	killed := worker("1h")
	killed.await("started " + one + " attempt 1")
	killed.kill()
	second := worker("0s")
	second.await("started " + one + " attempt 2")
	second.await("fresh " + one)
	send(one) // another delivery of a job that is done
	second.await("duplicate " + one)
	check(one, second)
	second.stop()

	// A paused worker loses its lease, and continues after its successor has ended.
	send(two)
	paused := worker("1m")
	paused.await("started " + two + " attempt 1")
	if err := paused.command.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	third := worker("0s")
	third.await("fresh " + two)
	third.stop()
	if err := paused.command.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if why := paused.await("later " + two); !strings.Contains(why, "lease lost") {
		t.Errorf("the paused worker says%s", why)
	}
	check(two, third)
	paused.kill()

	// The target knows a later token: the write is refused, and the job stays pending.
	late := stream + "-3"
	if err := client.Do(t.Context(), client.B().Hset().Key(stream+":result:"+late).FieldValue().FieldValue("token", "9007199254740991").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	send(late)
	if why := worker("0s").await("later " + late); !strings.Contains(why, "a later holder has finished") {
		t.Errorf("the worker with the lower token says%s", why)
	}
	if times, err := client.Do(t.Context(), client.B().Hget().Key(stream+":result:"+late).Field("times").Build()).ToString(); err == nil {
		t.Errorf("the worker with the lower token wrote %s times", times)
	}
}
