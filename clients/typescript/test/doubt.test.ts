import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { type AddressInfo, connect, createServer } from "node:net";
import { after, test } from "node:test";
import { Client, InFlight, LeaseLost, Refused, Unavailable, Unknown } from "semel";

const client = new Client({ scope: `doubt-${randomUUID()}` });

/** Returns the state of a key after its effect failed. */
async function stateAfter(reason: unknown): Promise<unknown> {
	const id = randomUUID();
	const failed = client.once(id, () => Promise.reject(reason));
	await failed.then(
		() => assert.fail("it succeeded"),
		() => {},
	);
	return (await client.lookup([id]))[0]?.state;
}

function error(members: object, message = "it failed"): Error {
	return Object.assign(new Error(message), members);
}

/** An error of a library that gives its classes no names. */
class MaxRetriesPerRequestError extends Error {}
class RequestTimeoutError extends Error {}
class OwnError extends RequestTimeoutError {}

const reset = error({ code: "ECONNRESET", syscall: "read" });
const refused = error({ code: "ECONNREFUSED", syscall: "connect" });
const grpc = (code: number, details = "") => error({ code, details, metadata: {} });

const open: Record<string, unknown> = {
	reset,
	"a broken pipe": error({ code: "EPIPE", syscall: "write" }),
	"no route on a connection": error({ code: "EHOSTUNREACH", syscall: "read" }),
	"a cause": new TypeError("fetch failed", { cause: reset }),
	"an object that is no Error": { code: "ECONNRESET" },
	timeout: new DOMException("late", "TimeoutError"),
	"an abort": new DOMException("stopped", "AbortError"),
	"an answer that ends": error({ code: "ERR_STREAM_PREMATURE_CLOSE" }),
	"an answer that is no HTTP": error({ code: "HPE_INVALID_CONSTANT" }),
	"one of several": new AggregateError([new Error("no such account"), reset]),
	"several in a cause": new Error("failed", { cause: new AggregateError([refused, new Error("x", { cause: reset })]) }),
	"a class": new RequestTimeoutError("late"),
	"a class that extends one": new OwnError("late"),
	"redis: closed": error({}, "Connection is closed."),
	"redis: late": error({}, "Command timed out"),
	"pg: ended": error({}, "Connection terminated unexpectedly"),
	"pg: closed": error({}, "Connection terminated"),
	"pg: late": error({}, "Query read timeout"),
	"pg: shut down": error({ code: "57P01" }, "terminating connection due to administrator command"),
	"pg: failure": error({ code: "08006" }),
	mysql: error({ code: "PROTOCOL_CONNECTION_LOST", fatal: true }),
	"grpc: late": grpc(4, "Deadline exceeded"),
	"grpc: cancelled": grpc(1, "Cancelled on client"),
	"grpc: ended": grpc(14, "Connection dropped"),
	"mongo: ended": error({ name: "MongoNetworkError" }, "connection 3 to 127.0.0.1:27017 closed"),
	axios: error({ name: "AxiosError", code: "ERR_CANCELED" }),
	unknown: new Unknown("look"),
	"unknown as a cause": new Error("failed", { cause: new Unknown("look") }),
	"a lost lease": new LeaseLost("lost"),
	"a completion without an answer": new Unavailable("no answer", true),
};

const notSent: Record<string, unknown> = {
	refused,
	"a cause": new TypeError("fetch failed", { cause: refused }),
	"late before it is connected": error({ code: "ETIMEDOUT", syscall: "connect" }),
	"no such host": error({ code: "ENOTFOUND", syscall: "getaddrinfo" }),
	"fetch: late before it is connected": error({ name: "ConnectTimeoutError", code: "UND_ERR_CONNECT_TIMEOUT" }),
	"no TLS": error(
		{ code: "ECONNRESET" },
		"Client network socket disconnected before secure TLS connection was established",
	),
	"several addresses": new AggregateError([refused, error({ code: "ETIMEDOUT", syscall: "connect" })]),
	"pg: late before it is connected": error({}, "Connection terminated due to connection timeout"),
	"pg: not connected": error({ code: "08001" }),
	"grpc: not connected": grpc(14, "No connection established. Last error: connect ECONNREFUSED 127.0.0.1:1"),
	"grpc: refused": grpc(7, "PERMISSION_DENIED"),
	"mongo: not connected": error({ name: "MongoServerSelectionError", cause: error({ name: "MongoNetworkError" }) }),
	"a name that is refused": error({ name: "SequelizeConnectionRefusedError", cause: refused }),
	"nothing ran": new Unavailable("no answer", false, { cause: reset }),
	"a refusal": new Refused("too large", "body-too-large", false, { cause: reset }),
	"another code": error({ code: 4 }),
	"a text": "timeout",
	nothing: undefined,
	"any other": new RangeError("no such account"),
};

test("an error says whether the effect may have taken place", async (t) => {
	const looping = error({});
	looping.cause = looping;
	for (const [state, reasons] of [
		["unknown", open],
		["absent", { ...notSent, "its own cause": looping }],
	] as const) {
		for (const [name, reason] of Object.entries(reasons)) {
			await t.test(`${state}: ${name}`, async () => assert.equal(await stateAfter(reason), state));
		}
	}
});

test("errors of Node itself say whether the effect may have taken place", async () => {
	const server = createServer((socket) => socket.once("data", () => socket.destroy()));
	await once(server.listen(0, "127.0.0.1"), "listening");
	after(() => server.close());
	const { port } = server.address() as AddressInfo;
	const get = (url: string, signal?: AbortSignal) => fetch(url, { signal: signal ?? null }).catch((reason) => reason);
	assert.equal(await stateAfter(await get(`http://127.0.0.1:${port}/`)), "unknown");
	assert.equal(await stateAfter(await get(`http://127.0.0.1:${port}/`, AbortSignal.abort())), "unknown");
	await new Promise((closed) => server.close(closed));
	assert.equal(await stateAfter(await get(`http://127.0.0.1:${port}/`)), "absent");
	const socket = connect({ port, host: "both", lookup: (_host, _options, done) => done(null, both) });
	after(() => socket.destroy());
	const [several] = await once(socket, "error");
	assert.ok(several instanceof AggregateError);
	assert.equal(await stateAfter(several), "absent");
});

/** Two addresses of a name, at which nobody listens. */
const both = ["127.0.0.1", "127.0.0.2"].map((address) => ({ address, family: 4 }));

test("inDoubt names further errors", async () => {
	const own = { inDoubt: (reason: unknown) => reason instanceof MaxRetriesPerRequestError };
	for (const [reason, state] of [
		[new MaxRetriesPerRequestError(), "unknown"],
		[new Refused("the function ran", "forbidden", true), "unknown"],
		[new DOMException("late", "TimeoutError"), "unknown"],
		[new RangeError(), "absent"],
	] as const) {
		const id = randomUUID();
		await assert.rejects(
			client.once(id, () => Promise.reject(reason), own),
			reason,
		);
		assert.equal((await client.lookup([id]))[0]?.state, state);
	}
	// An error of this package says itself whether anything ran.
	const nothingRan = new InFlight("another call holds the key", undefined, 1000);
	const id = randomUUID();
	await assert.rejects(
		client.once(id, () => Promise.reject(nothingRan), { inDoubt: () => true }),
		nothingRan,
	);
	assert.equal((await client.lookup([id]))[0]?.state, "absent");
});
