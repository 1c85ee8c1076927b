import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { after, test } from "node:test";
import { Queue, QueueEvents, UnrecoverableError, Worker } from "bullmq";
import { Client } from "semel";
import { processor } from "semel/bullmq";

/** Starts a server in between that answers nothing while it is down. */
async function between() {
	const state = { down: true, url: "" };
	const server = createServer(async (req, res) => {
		if (state.down) {
			req.socket.destroy();
			return;
		}
		const parts: Buffer[] = [];
		for await (const part of req) {
			parts.push(part);
		}
		const headers = { "content-type": "application/json" };
		const answer = await fetch(`${process.env.SEMEL_URL}${req.url}`, {
			method: "POST",
			headers,
			body: Buffer.concat(parts),
		});
		res.writeHead(answer.status, headers).end(await answer.text());
	});
	after(() => server.close().closeAllConnections());
	await once(server.listen(0, "127.0.0.1"), "listening");
	state.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
	return state;
}

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
			held = client.once(["job", "d"], work, { scope: name });
		});
		const delayed = new Promise((resolve) => events.on("delayed", resolve));
		const job = await queue.add("job", { id: "d" }, { attempts: 1 });
		await delayed;
		done();
		await held;
		await job.waitUntilFinished(events, 60_000);
		assert.equal(runs.has("d"), false);

		// Another job of the queue may have the same key.
		const other = await queue.add("other job", { id: "a" }, { attempts: 1 });
		assert.equal(await other.waitUntilFinished(events, 60_000), "a in run 2, attempt 1");
	} finally {
		await Promise.all([worker.close(), events.close(), queue.close()]);
	}
});

test("a job has another key than one that had its id before the queue was emptied", async () => {
	const redis = new URL(process.env.SEMEL_TEST_REDIS ?? "");
	const connection = { host: redis.hostname, port: Number(redis.port) };
	const name = `semel-${randomUUID()}`;
	const ran: unknown[] = [];
	const run = processor<import("bullmq").Job, string>(new Client(), (job) => `run ${ran.push(job.id)}`);
	const queue = new Queue(name, { connection });
	const events = new QueueEvents(name, { connection });
	await events.waitUntilReady();
	for (const [options, expected] of [
		[{}, "run 1"],
		[{}, "run 2"],
		[{ jobId: "order-7" }, "run 3"],
		[{ jobId: "order-7" }, "run 3"],
	] as const) {
		const worker = new Worker(name, run, { connection });
		try {
			assert.equal(await (await queue.add("job", {}, options)).waitUntilFinished(events, 60_000), expected);
		} finally {
			await worker.close();
		}
		await queue.obliterate({ force: true });
	}
	assert.deepEqual(ran, ["1", "1", "order-7"]);
	await Promise.all([events.close(), queue.close()]);
});

test("a job whose outcome comes later counts no attempt", async () => {
	const redis = new URL(process.env.SEMEL_TEST_REDIS ?? "");
	const connection = { host: redis.hostname, port: Number(redis.port) };
	const name = `semel-${randomUUID()}`;
	const server = await between();
	const client = new Client({ url: server.url, scope: name, retryFor: 1 });
	let runs = 0;
	const run = processor<import("bullmq").Job, string>(
		client,
		async (job) => {
			if (++runs === 1) {
				// The lease is lost: an operator removes the key.
				const body = JSON.stringify({ scope: name, id: [job.id, job.timestamp], reason: "test" });
				const headers = { "content-type": "application/json" };
				assert.equal((await fetch(`${server.url}/v1/remove`, { method: "POST", headers, body })).status, 200);
			}
			return `run ${runs}`;
		},
		{ scope: name },
	);
	const queue = new Queue(name, { connection });
	const events = new QueueEvents(name, { connection });
	await events.waitUntilReady();
	let delays = 0;
	let twice = () => {};
	const delayedTwice = new Promise<void>((resolve) => {
		twice = resolve;
	});
	events.on("delayed", () => {
		if (++delays === 2) {
			twice();
		}
	});
	const worker = new Worker(name, run, { connection });
	try {
		const job = await queue.add("job", {}, { attempts: 1 });
		await delayedTwice; // nobody answered
		assert.equal(runs, 0);
		server.down = false;
		assert.equal(await job.waitUntilFinished(events, 60_000), "run 2");
		assert.ok(delays >= 3, `${delays} delays`);
	} finally {
		await Promise.all([worker.close(), events.close(), queue.close()]);
	}
});
