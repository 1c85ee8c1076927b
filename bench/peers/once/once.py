"""Calls once by threads, with the client of semel serve or with redis-py, and prints the seconds."""

import json
import sys
import threading
from time import perf_counter


def with_semel(address):
    import semel

    return semel.Client("http://" + address, scope="bench").once


def with_redis(address):
    """As guides show it. No command compares anything, so it has no fencing."""
    import redis

    host, port = address.rsplit(":", 1)
    client = redis.Redis(host, int(port))

    def once(key, fn, *args):
        if not client.set(key, "claimed", nx=True, ex=30):
            return json.loads(client.get(key))
        result = fn(*args)
        client.set(key, json.dumps(result), ex=86400)
        return result

    return once


def main(kind, address, calls, threads):
    once = {"semel": with_semel, "redis": with_redis}[kind](address)
    effects = [0] * threads
    failures = []
    ready = threading.Barrier(threads + 1)

    def work(thread):
        def effect(number):
            effects[thread] += 1
            return {"order": number}

        for warm in (0, 1):  # connections and threads are there before the clock runs
            if warm == 0:
                numbers = [-1 - thread]
            else:
                ready.wait()
                numbers = range(thread, calls, threads)
            try:
                for number in numbers:
                    result = once(f"order-{number}", effect, number)
                    if result != {"order": number}:
                        raise ValueError(f"the result of {number} is {result}")
            except Exception as error:
                failures.append(error)

    workers = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    ready.wait()
    began = perf_counter()
    for worker in workers:
        worker.join()
    took = perf_counter() - began
    if failures:
        raise failures[0]
    if sum(effects) != calls + threads:
        raise ValueError(f"{sum(effects)} effects of {calls + threads} calls")
    print(took)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
