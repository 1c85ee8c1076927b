import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { createInterface } from "node:readline";
import { after, before, test } from "node:test";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import type { Transport } from "@modelcontextprotocol/sdk/shared/transport.js";
import { McpError } from "@modelcontextprotocol/sdk/types.js";
import { z } from "zod";

// The official SDK on both sides of semel proxy with the profile mcp.
const program = process.env.SEMEL_PROGRAM;
const runs = new Map<string, number>();
const gates = new Map<string, { entered: () => void; opened: Promise<void> }>();
const sessions = new Map<string, StreamableHTTPServerTransport>();
let upstream: Server | undefined;
let proxy: ChildProcess | undefined;
let url: URL;

/** A service with sessions. Its tool pay says how often it ran for an order. */
function service(enableJsonResponse: boolean): Promise<StreamableHTTPServerTransport> {
	const server = new McpServer({ name: "bank", version: "1.0.0" });
	const inputSchema = { order: z.string(), fails: z.boolean().optional() };
	server.registerTool("pay", { inputSchema }, async ({ order, fails }, extra) => {
		const run = (runs.get(order) ?? 0) + 1;
		runs.set(order, run);
		const progressToken = extra._meta?.progressToken;
		if (progressToken !== undefined) {
			await extra.sendNotification({ method: "notifications/progress", params: { progressToken, progress: 1 } });
		}
		gates.get(order)?.entered();
		await gates.get(order)?.opened;
		return { isError: fails ?? false, content: [{ type: "text" as const, text: `run ${run}` }] };
	});
	const transport = new StreamableHTTPServerTransport({
		enableJsonResponse,
		sessionIdGenerator: randomUUID,
		onsessioninitialized: (id) => {
			sessions.set(id, transport);
		},
	});
	return server.connect(transport as Transport).then(() => transport);
}

before(async () => {
	if (program === undefined) {
		return;
	}
	upstream = createServer(async (req, res) => {
		const id = req.headers["mcp-session-id"];
		if (typeof id === "string" && !sessions.has(id)) {
			res.writeHead(404, { "content-type": "application/json" });
			res.end('{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"},"id":null}');
			return;
		}
		const json = req.url?.startsWith("/json") ?? false;
		const transport = typeof id === "string" ? sessions.get(id) : await service(json);
		await transport?.handleRequest(req, res);
	});
	await new Promise<void>((listening) => upstream?.listen(0, "127.0.0.1", listening));
	const { port } = upstream.address() as AddressInfo;
	const flags = ["proxy", "--listen", "127.0.0.1:0", "--upstream", `http://127.0.0.1:${port}`];
	flags.push("--scope", "header:X-Api-Key", "--profile", "mcp", "--admin", "off", "--log-format", "json");
	proxy = spawn(program, flags, { stdio: ["ignore", "ignore", "pipe"] });
	assert(proxy.stderr);
	for await (const line of createInterface(proxy.stderr)) {
		const { msg, address } = JSON.parse(line) as { msg: string; address: string };
		if (msg === "proxy") {
			url = new URL(address);
			break;
		}
	}
	proxy.stderr.resume();
});

after(() => {
	proxy?.kill("SIGKILL");
	upstream?.close();
	upstream?.closeAllConnections();
});

/** An agent with a session of its own. If lose returns true, an answer does not reach it. */
async function agent(path: string, lose: () => boolean = () => false): Promise<Client> {
	const client = new Client({ name: "agent", version: "1.0.0" });
	const transport = new StreamableHTTPClientTransport(new URL(path, url), {
		requestInit: { headers: { "x-api-key": "alice" } },
		fetch: async (input, init) => {
			const answer = await fetch(input, init);
			if (lose()) {
				await answer.arrayBuffer();
				throw new TypeError("the answer is lost");
			}
			return answer;
		},
	});
	await client.connect(transport as Transport);
	after(() => client.close());
	return client;
}

interface Text {
	isError?: boolean;
	content: { text: string }[];
}

async function pay(client: Client, order: string, key: string, more: object = {}, onprogress?: () => void) {
	const params = { name: "pay", arguments: { order, ...more }, _meta: { idempotencyKey: key } };
	const result = (await client.callTool(params, undefined, onprogress && { onprogress })) as Text;
	return result.content[0]?.text;
}

for (const path of ["/events", "/json"]) {
	test(`the SDK repeats calls through the proxy: ${path}`, { skip: program === undefined }, async () => {
		let loses = false;
		const alice = await agent(path, () => loses);
		const again = await agent(path);
		const order = `order of ${path}`;

		assert.deepEqual(
			(await alice.listTools()).tools.map(({ name }) => name),
			["pay"],
		);
		let progress = 0;
		assert.equal(await pay(alice, order, order, {}, () => progress++), "run 1");
		assert.equal(progress, path === "/events" ? 1 : 0);
		assert.equal(await pay(alice, order, order), "run 1");
		assert.equal(await pay(again, order, order), "run 1");
		await assert.rejects(pay(again, `another ${order}`, order), (reason) => {
			assert(reason instanceof McpError);
			assert.equal(reason.code, 422);
			assert.match((reason.data as { type: string }).type, /\/key-reused$/);
			return true;
		});
		assert.equal(runs.get(order), 1);
		assert.equal(runs.has(`another ${order}`), false);

		// The answer is lost, and the agent calls again.
		loses = true;
		await assert.rejects(pay(alice, `lost ${order}`, `lost ${order}`), /the answer is lost/);
		loses = false;
		assert.equal(await pay(alice, `lost ${order}`, `lost ${order}`), "run 1");

		// A call in flight.
		let open = () => {};
		const opened = new Promise<void>((done) => {
			open = done;
		});
		const first = await new Promise<{ result: Promise<string | undefined> }>((entered) => {
			const result = Promise.resolve().then(() => pay(alice, `slow ${order}`, `slow ${order}`));
			gates.set(`slow ${order}`, { entered: () => entered({ result }), opened });
		});
		await assert.rejects(pay(again, `slow ${order}`, `slow ${order}`), (reason) => {
			assert(reason instanceof McpError);
			assert.equal(reason.code, 409);
			assert.ok((reason.data as { retry_after: number }).retry_after >= 1);
			return true;
		});
		open();
		assert.equal(await first.result, "run 1");
		assert.equal(await pay(again, `slow ${order}`, `slow ${order}`), "run 1");

		// A tool that fails has run.
		assert.equal(await pay(alice, `failed ${order}`, `failed ${order}`, { fails: true }), "run 1");
		assert.equal(await pay(alice, `failed ${order}`, `failed ${order}`, { fails: true }), "run 1");

		// The session ends before a call, which then runs in another one.
		sessions.clear();
		await assert.rejects(pay(alice, `late ${order}`, `late ${order}`));
		assert.equal(await pay(await agent(path), `late ${order}`, `late ${order}`), "run 1");
	});
}
