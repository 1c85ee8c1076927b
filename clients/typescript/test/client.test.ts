import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { test } from "node:test";
import { Client, NotKept, Unknown } from "semel";

const client = new Client({ scope: `client-${randomUUID()}` });

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
