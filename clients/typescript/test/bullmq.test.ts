import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { test } from "node:test";
import { Queue, QueueEvents, UnrecoverableError, Worker } from "bullmq";
import { Client } from "semel";
import { processor } from "semel/bullmq";

test("a job that BullMQ runs again takes effect once", async () => {
	assert.ok(process.env.SEMEL_TEST_REDIS, "set SEMEL_TEST_REDIS to the URL of a Redis server");
	const redis = new URL(process.env.SEMEL_TEST_REDIS);
	const connection = { host: redis.hostname, port: Number(redis.port) };
	const name = `semel-${randomUUID()}`;
	const client = new Client();
	const runs = new Map<string, number>();
	const run = processor<import("bullmq").Job, string>(
		client,
		async (job, claim) => {
			const id = String(job.data.id);
			runs.set(id, (runs.get(id) ?? 0) + 1);
			if (job.data.fails === "for good") {
				throw new UnrecoverableError("no such account");
			}
			if (job.data.fails === "once" && runs.get(id) === 1) {
				throw new Error("try again");
			}
			return `${id} in run ${runs.get(id)}, attempt ${claim.attempt}`;
		},
		{ key: (job) => job.data.id, scope: name },
	);
	const queue = new Queue(name, { connection });
	const events = new QueueEvents(name, { connection });
	const worker = new Worker(name, run, { connection });
	const finish = async (data: object) =>
		(await queue.add("job", data, { attempts: 3, backoff: 10 })).waitUntilFinished(events, 60_000);
	try {
		await events.waitUntilReady();
		assert.equal(await finish({ id: "a" }), "a in run 1, attempt 1");
		assert.equal(await finish({ id: "a" }), "a in run 1, attempt 1");
		assert.equal(await finish({ id: "b", fails: "once" }), "b in run 2, attempt 1");
		await assert.rejects(finish({ id: "c", fails: "for good" }), /no such account/);
		await assert.rejects(finish({ id: "c", fails: "for good" }), /no such account/);
		assert.deepEqual([...runs.values()], [1, 2, 1]);

		// Another worker holds the key: the job is delayed, and counts no attempt.
		let done = () => {};
		let held: Promise<unknown> = Promise.resolve();
		await new Promise<void>((begun) => {
			const work = () =>
				new Promise<void>((resolve) => {
					done = resolve;
					begun();
				});
			held = client.once("d", work, { scope: name });
		});
		const delayed = new Promise((resolve) => events.on("delayed", resolve));
		const job = await queue.add("job", { id: "d" }, { attempts: 1 });
		await delayed;
		done();
		await held;
		await job.waitUntilFinished(events, 60_000);
		assert.equal(runs.has("d"), false);
	} finally {
		await Promise.all([worker.close(), events.close(), queue.close()]);
	}
});
