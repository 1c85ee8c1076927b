import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { createServer, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import os from "node:os";
import { after, test } from "node:test";
import {
	type Claim,
	Client,
	type ClientOptions,
	current,
	LeaseLost,
	NotKept,
	Permanent,
	Refused,
	Unavailable,
	Unknown,
} from "semel";

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
	})) {
		await assert.rejects(client.once(id, fn), /is a generator/);
		assert.throws(() => client.wrap(() => id, fn), /is a generator/);
		assert.equal((await client.lookup([id]))[0]?.state, "absent");
		assert.equal((await client.once(id, () => "second")).value, "second");
	}
	assert.equal(runs, 0);
	for (const [id, fn] of Object.entries<() => unknown>({
		promised: async () => events(),
		lazily: () => [1].values(), // the effect may stand before the return
	})) {
		await assert.rejects(client.once(id, fn), /may have happened/);
		await assert.rejects(
			client.once(id, () => assert.fail("it runs again")),
			Unknown,
		);
	}
});

/** Returns a client of a server in between, which answers what it gets from the server. */
async function between(
	respond: (answer: { status: number; text: string }, res: ServerResponse, asked: string) => unknown,
	options: ClientOptions = {},
) {
	const server = createServer(async (req, res) => {
		const parts: Buffer[] = [];
		for await (const part of req) {
			parts.push(part);
		}
		const asked = Buffer.concat(parts);
		const answer = await fetch(`${process.env.SEMEL_URL}${req.url}`, {
			method: "POST",
			headers: { "content-type": "application/json", authorization: req.headers.authorization ?? "" },
			body: asked,
		});
		respond({ status: answer.status, text: await answer.text() }, res, String(asked));
	});
	after(() => server.close().closeAllConnections());
	await new Promise<void>((listening) => server.listen(0, "127.0.0.1", listening));
	return new Client({ url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, scope, ...options });
}

const json = { "content-type": "application/json" };

test("a completion that is refused is told as that of a function that ran", async () => {
	const refused = await between(({ status, text }, res, asked) => {
		if (asked.includes('"complete"')) {
			res.writeHead(403, json).end('{"status":403,"type":"/forbidden","retry":"no"}');
		} else {
			res.writeHead(status, json).end(text);
		}
	});
	const unrecorded = (reason: unknown) => reason instanceof Refused && reason.ran && reason.problem === "forbidden";
	await assert.rejects(
		refused.once("unrecorded", () => 1),
		unrecorded,
	);
	const declined = () => Promise.reject(new Permanent("declined"));
	await assert.rejects(refused.once("unrecorded failure", declined), unrecorded);
	await assert.rejects(
		client.once("never asked", () => 1, { window: "a week" }),
		(reason) => reason instanceof Refused && !reason.ran,
	);
});

test("a permanent failure is kept, or told as one that may not be", async () => {
	const long = () => Promise.reject(new Permanent(`declined ${"x".repeat(3_000_000)}`));
	await assert.rejects(client.once("declined", long), /declined/);
	await assert.rejects(
		client.once("declined", () => assert.fail("it runs again")),
		(reason) => reason instanceof Permanent && reason.replayed,
	);
	const taken = client.once("taken over", async () => {
		const body = JSON.stringify({ scope, id: "taken over", reason: "test" });
		await fetch(`${process.env.SEMEL_URL}/v1/remove`, { method: "POST", headers: json, body });
		throw new Permanent("declined");
	});
	await assert.rejects(taken, LeaseLost);
});

test("an option that is undefined is none", async () => {
	const none = { scope: undefined, lease: undefined, window: undefined, wait: undefined, retryFor: undefined };
	const options = { ...none, renewFor: undefined, inDoubt: undefined, onLeaseExpired: undefined } as object;
	const again = () => Promise.reject(new Error("try again"));
	await assert.rejects(client.once("undefined", again, options), /try again/);
	assert.equal((await client.once("undefined", () => "second", options)).value, "second");
	assert.equal((await client.lookup(["undefined"]))[0]?.state, "done");
});

test("two renewals of a lease are never on their way at once", async () => {
	const open = new Set<string>();
	const overlaps: string[] = [];
	const held: (() => void)[] = [];
	let begun = () => {};
	const first = new Promise<void>((resolve) => {
		begun = resolve;
	});
	const others = new Set<string>();
	const slow = await between(({ status, text }, res, asked) => {
		const items: { id: string; lease?: string }[] = JSON.parse(asked).items;
		const answer = () => res.writeHead(status, json).end(text);
		const ids = items.flatMap(({ id, lease }) => (lease === undefined ? [] : [id]));
		overlaps.push(...ids.filter((id) => open.has(id)));
		if (!ids.includes("renewed slowly")) {
			for (const id of ids) {
				others.add(id);
			}
			answer();
			return;
		}
		open.add("renewed slowly");
		held.push(answer);
		begun();
	});
	const effects: (() => void)[] = [];
	const effect = () => new Promise<void>((resolve) => effects.push(resolve));
	const calls = [slow.once("renewed slowly", effect, { lease: 6000 })];
	await first;
	calls.push(slow.once("renewed often", effect, { lease: 300 }));
	while (!others.has("renewed often") && overlaps.length === 0) {
		await new Promise((next) => setTimeout(next, 10));
	}
	effects[0]?.();
	await new Promise((next) => setTimeout(next, 10));
	assert.deepEqual(overlaps, []);
	for (const answer of held) {
		answer();
	}
	effects[1]?.();
	await Promise.all(calls);
});

test("a claim whose answer was lost is given back", async () => {
	let lost = false;
	const hasty = await between(
		({ status, text }, res) => {
			if (lost) {
				res.writeHead(status, json).end(text);
			} else {
				lost = true;
				res.destroy();
			}
		},
		{ retryFor: 1 },
	);
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

test("a wrapped function sees its claim", async () => {
	assert.throws(current, /no function runs here/);
	const seen: Claim[] = [];
	const charge = client.wrap(
		(id: string, _fails: boolean) => id,
		async (_, fails: boolean) => {
			await Promise.resolve();
			seen.push(current());
			if (fails) {
				throw new Unknown("look");
			}
		},
		{ onLeaseExpired: "retry", wait: 60_000 },
	);
	await assert.rejects(charge("seen", true), Unknown);
	await charge("seen", false);
	assert.deepEqual(
		seen.map(({ attempt }) => attempt),
		[1, 2],
	);
	assert.ok((seen[1]?.token ?? 0n) > (seen[0]?.token ?? 0n));
});

test("a person settles an unknown key", async () => {
	for (const happened of [true, false]) {
		const id = `settled as ${happened}`;
		await assert.rejects(
			client.once(id, () => Promise.reject(new Unknown("look"))),
			Unknown,
		);
		await client.resolve(id, { happened, reason: "it is in the ledger" });
		const { value, replayed } = await client.once(id, () => "second");
		assert.deepEqual([value, replayed], happened ? [undefined, true] : ["second", false]);
	}
	await assert.rejects(client.resolve("never", { happened: true, reason: "" }), Refused);
});

/** Lets the machine sleep for an hour, as far as its clock says so. */
function sleep(): void {
	const { uptime } = os;
	os.uptime = () => uptime() + 3600;
}

test("a lease that ended while the machine slept is lost", { skip: process.platform !== "linux" }, async () => {
	const lost = (reason: unknown) => reason instanceof LeaseLost;
	const lease = 3000;
	const effect = ({ signal }: Claim) =>
		new Promise((_, reject) => {
			assert.equal(signal.aborted, false);
			signal.addEventListener("abort", () => reject(signal.reason));
			sleep();
		});
	await assert.rejects(client.once("slept", effect, { lease }), lost);
	const late = (claim: Claim) => {
		sleep();
		assert.ok(claim.signal.aborted);
		throw claim.signal.reason;
	};
	await assert.rejects(client.once("slept and asked", late), lost);
	assert.equal((await client.once("awake", () => "awake")).value, "awake");
});

test("a lease that ended before its answer came does not begin", { skip: process.platform !== "linux" }, async () => {
	const inDoubt = (reason: unknown) => (reason as Error).name === "Own"; // there is no reason if nothing ran
	const asleep = await between((answer, res) => {
		sleep();
		res.writeHead(answer.status, json).end(answer.text);
	});
	const never = asleep.once("slept before", () => assert.fail("it runs"), { inDoubt });
	await assert.rejects(never, /the lease ended before the function began/);
	assert.equal((await client.once("slept before", ({ attempt }) => attempt, { wait: 25_000 })).value, 1);
});
