import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { test } from "node:test";
import { Client as McpClient } from "@modelcontextprotocol/sdk/client/index.js";
import { InMemoryTransport } from "@modelcontextprotocol/sdk/inMemory.js";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { Client, current } from "semel";
import { type ToolOptions, tool } from "semel/mcp";
import { z } from "zod";

test("a tool that is called again does not run again", async () => {
	let runs = 0;
	let fails = false;
	const server = new McpServer({ name: "test", version: "1.0.0" });
	const pay = tool(new Client(), `pay-${randomUUID()}`, async ({ amount }: { amount: number }) => {
		runs++;
		return { isError: fails, content: [{ type: "text" as const, text: `paid ${amount} in run ${runs}` }] };
	});
	server.registerTool("pay", { inputSchema: { amount: z.number() } }, pay);
	let ticks = 0;
	const tick = tool(new Client(), `tick-${randomUUID()}`, () => ({
		content: [{ type: "text" as const, text: `tick ${++ticks}` }],
	}));
	server.registerTool("tick", {}, tick);
	const agent = new McpClient({ name: "agent", version: "1.0.0" });
	const [one, other] = InMemoryTransport.createLinkedPair();
	await Promise.all([server.connect(one), agent.connect(other)]);
	const call = async (amount: number, key?: string) => {
		const _meta = key === undefined ? {} : { _meta: { idempotencyKey: key } };
		const result = await agent.callTool({ name: "pay", arguments: { amount }, ..._meta });
		return [result.isError ?? false, (result.content as { text: string }[])[0]?.text];
	};

	assert.deepEqual(await call(5), [false, "paid 5 in run 1"]);
	assert.deepEqual(await call(5), [false, "paid 5 in run 1"]);
	assert.deepEqual(await call(6), [false, "paid 6 in run 2"]);
	assert.deepEqual(await call(5, "another purpose"), [false, "paid 5 in run 3"]);
	assert.deepEqual(await call(5, "another purpose"), [false, "paid 5 in run 3"]);
	const [failed, text] = await call(7, "another purpose");
	assert.equal(failed, true);
	assert.match(String(text), /another payload/);
	assert.equal(runs, 3);

	fails = true;
	assert.deepEqual(await call(8), [true, "paid 8 in run 4"]);
	fails = false;
	assert.deepEqual(await call(8), [false, "paid 8 in run 5"]);

	// The SDK hands no arguments to a tool that has no schema.
	assert.equal((await agent.callTool({ name: "tick" })).isError, undefined);
	assert.deepEqual((await agent.callTool({ name: "tick" })).content, [{ type: "text", text: "tick 1" }]);
	await agent.close();
});

interface Extra {
	_meta?: Record<string, unknown>;
	requestInfo?: unknown;
	sessionId?: string;
	authInfo?: { clientId: string };
	user?: string;
}

test("a caller that connects again is the same caller", async () => {
	let runs = 0;
	const pay = async (_: { amount: number }) => ({
		content: [{ type: "text" as const, text: `run ${++runs}, attempt ${current().attempt}` }],
	});
	const name = `pay-${randomUUID()}`;
	const called = async (options: ToolOptions<Extra>, extra: Extra) =>
		(await tool(new Client(), name, pay, options)({ amount: 5 }, extra)).content[0]?.text;
	const authInfo = { clientId: "agent" };
	assert.equal(await called({}, {}), "run 1, attempt 1");
	assert.equal(await called({}, {}), "run 1, attempt 1");
	assert.equal(await called({}, { sessionId: "2", authInfo }), "run 2, attempt 1");
	assert.equal(await called({}, { sessionId: "3", authInfo }), "run 2, attempt 1");

	// Several users behind one clientId.
	const users: ToolOptions<Extra> = { caller: ({ user }) => user ?? "" };
	assert.equal(await called(users, { authInfo, user: "alice" }), "run 3, attempt 1");
	assert.equal(await called(users, { authInfo, user: "bob" }), "run 4, attempt 1");
	assert.equal(await called(users, { authInfo, user: "alice", sessionId: "4" }), "run 3, attempt 1");

	// Several callers over HTTP that nobody can tell apart.
	for (const [options, extra] of [
		[{}, { sessionId: "1" }],
		[{}, { requestInfo: { headers: {} } }],
		[{}, { requestInfo: { headers: {} }, authInfo: { clientId: "" } }],
		[{ caller: ({ user }: Extra) => user as string }, {}],
	] as const) {
		assert.match(String(await called(options, extra)), /nothing ran: .*name the option caller/);
	}
	const one = { caller: () => "" };
	assert.equal(await called(one, { sessionId: "1" }), "run 1, attempt 1");
	assert.equal(runs, 4);

	for (const idempotencyKey of [null, "", " ", 7, {}]) {
		assert.match(String(await called({}, { _meta: { idempotencyKey } })), /nothing ran: .*no text/);
	}
	assert.equal(runs, 4);
});
