// The driver of the TypeScript client for test/clients, which describes its protocol.

import { createInterface } from "node:readline";
import * as semel from "../dist/index.js";

const words = new Map([
	[semel.InFlight, "in_flight"],
	[semel.Unknown, "unknown"],
	[semel.Mismatch, "mismatch"],
	[semel.Late, "late"],
	[semel.LeaseLost, "lease_lost"],
	[semel.Unavailable, "unavailable"],
	[semel.NotKept, "not_kept"],
	[semel.Permanent, "permanent"],
	[semel.Refused, "refused"],
]);

/** The failures that the journal asks for. */
const failures = { fail: Error, permanent: semel.Permanent, unknown: semel.Unknown };

/** One client for each way of configuring it, so that calls share requests. */
const clients = new Map();

function clientOf(command) {
	const options = {
		url: command.url,
		scope: command.scope,
		onLeaseExpired: command.on_lease_expired,
		lease: milliseconds(command.lease),
		window: command.window,
		retryFor: milliseconds(command.retry_for),
		timeout: milliseconds(command.timeout),
	};
	const name = JSON.stringify(options);
	if (!clients.has(name)) {
		clients.set(name, new semel.Client(options));
	}
	return clients.get(name);
}

async function once(command, id, key, wait) {
	const options = { wait };
	if (command.payload !== undefined) {
		options.payload = command.payload;
	}
	if (command.age !== undefined) {
		options.time = new Date(Date.now() - 1000 * command.age);
	}
	const effect = async ({ attempt, token, signal }) => {
		const body = JSON.stringify({ key, attempt, token: String(token), pid: process.pid });
		const response = await fetch(command.journal, { method: "POST", body, signal });
		const answer = await response.json();
		if (answer.fail) {
			throw new failures[answer.fail]("as the journal says");
		}
		return answer.result;
	};
	try {
		const { value } = await clientOf(command).once(idOf(id), effect, options);
		return { value: value ?? null };
	} catch (reason) {
		const word = words.get(reason.constructor) ?? (reason.message === "as the journal says" ? "effect" : "other");
		return { error: word, message: String(reason) };
	}
}

async function run(command) {
	if (command.clock) {
		shiftClock(1000 * command.clock);
	}
	const wait = milliseconds(command.wait);
	// Calls of one key in a batch wait for each other.
	const calls =
		command.op === "batch"
			? command.ids.map((id, i) => once(command, id, command.keys[i], Math.max(wait, 60_000)))
			: Array.from({ length: command.n ?? 1 }, () => once(command, command.id, command.key, wait));
	process.stdout.write(`${JSON.stringify({ call: command.call, outcomes: await Promise.all(calls) })}\n`);
}

/** JSON.parse rounds long integers, so they are read as texts that are marked. */
function parse(line) {
	const marked = line.replace(/"(?:[^"\\]|\\.)*"|-?\d{16,}(?![\d.eE])/g, (token) =>
		token.startsWith('"') ? token : `{"integer":"${token}"}`,
	);
	return JSON.parse(marked);
}

function idOf(id) {
	if (id?.integer !== undefined) {
		return BigInt(id.integer);
	}
	return id?.base64 === undefined ? id : new Uint8Array(Buffer.from(id.base64, "base64"));
}

function milliseconds(text) {
	let sum = 0;
	for (const [, number, unit] of (text ?? "").matchAll(/([\d.]+)(ms|s|m|h|d)/g)) {
		sum += Number(number) * { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 }[unit];
	}
	return sum;
}

function shiftClock(by) {
	const now = Date.now;
	globalThis.Date = class extends Date {
		constructor(...args) {
			super(...(args.length > 0 ? args : [now() + by]));
		}
		static now() {
			return now() + by;
		}
	};
}

for await (const line of createInterface({ input: process.stdin })) {
	run(parse(line));
}
