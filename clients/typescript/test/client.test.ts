import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { after, test } from "node:test";
import { type Claim, Client, LeaseLost, NotKept, Unavailable, Unknown } from "semel";

const scope = `client-${randomUUID()}`;
const client = new Client({ scope });

test("an effect is recorded although its value cannot be kept", async () => {
	const large = { text: "x".repeat(2_000_000) };
	assert.equal((await client.once("large", () => large)).value, large);
	await assert.rejects(
		client.once("large", () => assert.fail("it runs again")),
		NotKept,
	);
	await assert.rejects(
		client.once("bigint", () => 1n),
		TypeError,
	);
	await assert.rejects(
		client.once("bigint", () => assert.fail("it runs again")),
		NotKept,
	);
});

test("an error after which a request may have arrived leaves the outcome open", async () => {
	const reset = Object.assign(new Error("read ECONNRESET"), { code: "ECONNRESET" });
	const refused = Object.assign(new Error("connect ECONNREFUSED"), { code: "ECONNREFUSED" });
	for (const [id, reason, open] of [
		["reset", new TypeError("fetch failed", { cause: reset }), true],
		["timeout", new DOMException("late", "TimeoutError"), true],
		["refused", new TypeError("fetch failed", { cause: refused }), false],
	] as const) {
		await assert.rejects(
			client.once(id, () => Promise.reject(reason)),
			reason,
		);
		if (open) {
			await assert.rejects(
				client.once(id, () => assert.fail("it runs again")),
				Unknown,
			);
		} else {
			assert.equal((await client.once(id, () => "second")).value, "second");
		}
	}
});

test("a function whose body did not run is refused", async () => {
	let runs = 0;
	async function* events() {
		yield ++runs;
	}
	for (const [id, fn] of Object.entries<() => unknown>({
		*generator() {
			yield ++runs;
		},
		asyncGenerator: events,
		promised: async () => events(),
		lazily: () => [1].values(),
	})) {
		await assert.rejects(client.once(id, fn), /its body did not run/);
		assert.equal((await client.lookup([id]))[0]?.state, "absent");
		assert.equal((await client.once(id, () => "second")).value, "second");
	}
	assert.equal(runs, 0);
});

test("a claim whose answer was lost is given back", async () => {
	let lost = false;
	const between = createServer(async (req, res) => {
		const parts: Buffer[] = [];
		for await (const part of req) {
			parts.push(part);
		}
		const answer = await fetch(`${process.env.SEMEL_URL}${req.url}`, {
			method: "POST",
			headers: { "content-type": "application/json", authorization: req.headers.authorization ?? "" },
			body: Buffer.concat(parts),
		});
		const text = await answer.text();
		if (!lost) {
			lost = true;
			req.socket.destroy();
			return;
		}
		res.writeHead(answer.status, { "content-type": "application/json" }).end(text);
	});
	after(() => between.close().closeAllConnections());
	await new Promise<void>((listening) => between.listen(0, "127.0.0.1", listening));
	const url = `http://127.0.0.1:${(between.address() as AddressInfo).port}`;
	const hasty = new Client({ url, scope, retryFor: 1 });
	await assert.rejects(
		hasty.once("lost", () => assert.fail("it runs")),
		(reason) => reason instanceof Unavailable && !reason.ran,
	);
	const { value } = await client.once("lost", ({ attempt }) => attempt, { wait: 25_000 }); // below its lease
	assert.equal(value, 1);
});

test("a function that never ends does not keep its key", async () => {
	let aborted: unknown;
	const endless = client.once(
		"endless",
		({ signal }) => {
			signal.addEventListener("abort", () => {
				aborted = signal.reason;
			});
			return new Promise(() => {});
		},
		{ renewFor: 100, lease: 300 },
	);
	endless.catch(() => {});
	const look = () => client.once("endless", () => assert.fail("it runs again"), { wait: 30_000 });
	await assert.rejects(look, Unknown);
	assert.match(String(aborted), /renewFor/);
});

test("a wrapped function runs once for its key", async () => {
	let runs = 0;
	const charge = client.wrap(
		(order: { id: string; amount: number }) => order.id,
		async ({ amount }) => ({ charged: amount, run: ++runs }),
	);
	const order = { id: "wrapped", amount: 5 };
	assert.deepEqual(await charge(order), { value: { charged: 5, run: 1 }, replayed: false });
	assert.deepEqual(await charge(order), { value: { charged: 5, run: 1 }, replayed: true });
	assert.equal((await client.lookup(["wrapped"]))[0]?.state, "done");
});

test("a lost lease aborts the signal, also one that is asked for afterwards", async () => {
	const scope = `lost-${randomUUID()}`;
	const short = new Client({ scope, lease: 3000 });
	const ended = ({ signal }: Claim) =>
		new Promise<void>((resolve) => {
			if (signal.aborted) {
				resolve();
			}
			signal.addEventListener("abort", () => resolve());
		});
	const remove = async (id: string) => {
		const body = JSON.stringify({ scope, id, reason: "test" });
		const headers = { "content-type": "application/json" };
		const url = process.env.SEMEL_URL ?? "http://127.0.0.1:4196";
		assert.equal((await fetch(`${url}/v1/remove`, { method: "POST", headers, body })).status, 200);
	};
	let lost = () => {};
	const isLost = new Promise<void>((resolve) => {
		lost = resolve;
	});
	const calls = [
		short.once("early", async (claim) => {
			await remove("early");
			await ended(claim);
			lost();
		}),
		short.once("late", async (claim) => {
			await remove("late");
			await isLost;
			await ended(claim);
			assert.ok(claim.signal.reason instanceof LeaseLost);
		}),
	];
	for (const call of calls) {
		await assert.rejects(call, LeaseLost);
	}
});
