import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import type { AddressInfo } from "node:net";
import { Readable } from "node:stream";
import { after, test } from "node:test";
import express from "express";
import Fastify from "fastify";
import { Client, current, Permanent, Unknown } from "semel";
import * as inExpress from "semel/express";
import * as inFastify from "semel/fastify";

/** How often the handler of a path ran, and what it answers next. */
const service = { runs: 0, status: 201 };
const client = new Client({ scope: `web-${randomUUID()}` });

/** A handler that looks at its claim. */
const lookAtClaim = () => `run ${++service.runs}, attempt ${current().attempt}`;

/** Asks another system, and returns its failure. */
function ask(reason: string | undefined): Error | undefined {
	const reasons: Record<string, Error> = {
		"times out": new DOMException("the bank did not answer", "TimeoutError"),
		"is unknown": new Unknown("the bank did not say"),
		declines: new Permanent("no such account"),
		fails: new Error("not now"),
	};
	return reason === undefined ? undefined : reasons[reason];
}

/** The policy of handlers that do not answer. */
const stalled = { renewFor: 100, lease: 300 };

async function expressUrl(): Promise<string> {
	const app = express();
	const options = { key: (req: express.Request) => req.body.id };
	const hook = inExpress.once<express.Request, express.Response>(client, options);
	app.post("/hook", express.json(), hook, async (req, res) => {
		service.runs++;
		if (req.body.fails) {
			throw new Error("the handler failed");
		}
		if (req.body.slow) {
			await released;
		}
		res.status(service.status).json({ run: service.runs });
	});
	app.use(
		"/mounted",
		express.Router().post("/hook", express.json(), hook, (_req, res) => res.send(lookAtClaim())),
	);
	app.post("/streams", express.json(), hook, (_req, res) => {
		service.runs++;
		res.writeHead(202, { "content-type": "text/plain" });
		res.write("run ");
		res.end(String(service.runs));
	});
	app.post("/breaks", express.json(), hook, (_req, res) => {
		service.runs++;
		res.write("part");
		res.destroy();
	});
	app.post("/short", express.json(), hook, (_req, res) => {
		service.runs++;
		res.set("content-length", "10");
		res.end("part");
	});
	app.post("/fails-late", express.json(), hook, (_req, res) => {
		service.runs++;
		res.set("content-length", "10");
		res.write("part");
		throw new Error("the handler failed");
	});
	app.post(
		"/stalls",
		express.json(),
		inExpress.once<express.Request, express.Response>(client, { ...stalled, key: (req) => req.body.id }),
		() => {
			service.runs++;
		},
	);
	app.post(
		"/asks",
		express.json(),
		inExpress.once<express.Request, express.Response>(client, options, async (req, res, next) => {
			const failure = ask(req.body.reason);
			if (failure === undefined) {
				res.status(201).send(`run ${++service.runs}`);
			} else if (req.body.passes) {
				next(failure);
			} else {
				throw failure;
			}
		}),
	);
	app.use((_reason: unknown, _req: express.Request, res: express.Response, _next: express.NextFunction) => {
		res.status(500).end("error");
	});
	const server = app.listen(0, "127.0.0.1");
	after(() => server.close().closeAllConnections());
	await new Promise((listening) => server.once("listening", listening));
	return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

async function fastifyUrl(): Promise<string> {
	interface Body {
		id?: string | (string | number)[];
		fails?: boolean;
		slow?: boolean;
		reason?: string;
	}
	const app = Fastify();
	const hooks = inFastify.once<{ body: unknown }>(client, { key: (request) => (request.body as Body).id });
	app.post<{ Body: Body }>("/hook", hooks, async (request, reply) => {
		service.runs++;
		if (request.body.fails) {
			throw new Error("the handler failed");
		}
		if (request.body.slow) {
			await released;
		}
		return reply.code(service.status).send({ run: service.runs });
	});
	app.register(async (mounted) => mounted.post("/hook", hooks, async () => lookAtClaim()), {
		prefix: "/mounted",
	});
	app.post("/streams", hooks, async (_request, reply) => {
		service.runs++;
		return reply.code(202).type("text/plain").send(`run ${service.runs}`);
	});
	app.post("/breaks", hooks, async () => {
		service.runs++;
		return Readable.from(
			(async function* () {
				yield "part";
				throw new Error("the source failed");
			})(),
		);
	});
	app.post("/short", hooks, async (_request, reply) => {
		service.runs++;
		return reply.header("content-length", "10").send("part");
	});
	app.post("/piped", hooks, async (_request, reply) => {
		service.runs++;
		return reply
			.code(202)
			.type("text/plain")
			.send(Readable.from(["run ", String(service.runs)]));
	});
	app.post<{ Body: Body }>("/asks", hooks, async (request, reply) => {
		const failure = ask(request.body.reason);
		if (failure !== undefined) {
			throw failure;
		}
		return reply.code(201).send(`run ${++service.runs}`);
	});
	const stalls = inFastify.once<{ body: unknown }>(client, { ...stalled, key: (req) => (req.body as Body).id });
	app.post("/stalls", stalls, () => {
		service.runs++;
		return new Promise(() => {});
	});
	after(() => {
		app.server.closeAllConnections();
		return app.close();
	});
	return app.listen({ host: "127.0.0.1", port: 0 });
}

let release = () => {};
let released = Promise.resolve();

for (const [name, start] of Object.entries({ express: expressUrl, fastify: fastifyUrl })) {
	test(`${name}: a request takes effect once`, async (t) => {
		const url = await start();
		const post = async (path: string, body: object) => {
			const response = await fetch(url + path, {
				method: "POST",
				headers: { "content-type": "application/json" },
				body: JSON.stringify(body),
			});
			return { status: response.status, headers: response.headers, text: await response.text() };
		};

		await t.test("a repetition gets the first response", async () => {
			const id = randomUUID();
			const before = service.runs;
			const first = await post("/hook", { id });
			const second = await post("/hook", { id });
			assert.equal(first.status, 201);
			assert.equal(first.text, `{"run":${before + 1}}`);
			assert.deepEqual([second.status, second.text], [first.status, first.text]);
			assert.equal(second.headers.get("content-type"), first.headers.get("content-type"));
			assert.equal(second.headers.get("semel-decision"), "duplicate");
			assert.equal(service.runs, before + 1);
		});
		await t.test("the same id at another path is another effect", async () => {
			const id = randomUUID();
			const before = service.runs;
			await post("/hook", { id });
			assert.equal((await post("/mounted/hook", { id })).text, `run ${before + 2}, attempt 1`);
			assert.equal((await post("/mounted/hook?again=1", { id })).text, `run ${before + 2}, attempt 1`);
			assert.deepEqual(
				(await client.lookup([["/hook", id], ["/mounted/hook", id], id])).map(({ state }) => state),
				["done", "done", "absent"],
			);
			const parts = [id, 7];
			assert.equal((await post("/hook", { id: parts })).status, 201);
			assert.equal((await client.lookup([["/hook", ...parts]]))[0]?.state, "done");
		});
		await t.test("a response in parts is repeated whole", async () => {
			const id = randomUUID();
			const first = await post("/streams", { id });
			assert.deepEqual([first.status, first.text], [202, `run ${service.runs}`]);
			assert.equal((await post("/streams", { id })).text, first.text);
		});
		if (name === "fastify") {
			await t.test("a stream is repeated whole", async () => {
				const id = randomUUID();
				const first = await post("/piped", { id });
				assert.deepEqual([first.status, first.text], [202, `run ${service.runs}`]);
				assert.equal((await post("/piped", { id })).text, first.text);
			});
		} else {
			await t.test("a part before an error is no broken response", async () => {
				const id = randomUUID();
				const first = await post("/fails-late", { id });
				assert.deepEqual([first.status, first.text], [500, "parterror"]);
				assert.equal((await post("/fails-late", { id })).status, 500);
			});
		}
		for (const path of ["/breaks", "/short"]) {
			await t.test(`a response that is not whole leaves the outcome open: ${path}`, async () => {
				const id = randomUUID();
				const before = service.runs;
				const first = await post(path, { id }).catch(() => undefined); // its connection may break off
				assert.ok(first === undefined || first.status === 503, first?.text ?? "");
				const second = await post(path, { id });
				assert.equal(second.status, 503);
				assert.match(second.text, /settle the key/);
				assert.equal(service.runs, before + 1);
			});
		}
		for (const [reason, again] of [
			["times out", /settle the key/],
			["is unknown", /settle the key/],
			["declines", /no such account/],
			["fails", /run/],
		] as const) {
			for (const passes of name === "express" ? [false, true] : [false]) {
				await t.test(`the error of a handler says what its repetition gets: it ${reason}`, async () => {
					const id = randomUUID();
					assert.equal((await post("/asks", { id, reason, passes })).status, 500);
					const second = await post("/asks", { id });
					assert.match(second.text, again);
					assert.equal((await post("/asks", { id })).text, second.text);
					assert.equal((await post("/asks", {})).status, 201);
				});
			}
		}
		await t.test("a handler that never responds does not keep its key", async () => {
			const id = randomUUID();
			const before = service.runs;
			const sender = new AbortController();
			const first = fetch(`${url}/stalls`, {
				method: "POST",
				headers: { "content-type": "application/json" },
				body: JSON.stringify({ id }),
				signal: sender.signal,
			});
			first.catch(() => {});
			const deadline = Date.now() + 30_000;
			let text = "";
			while (!/settle the key/.test(text) && Date.now() < deadline) {
				if (service.runs > before) {
					text = (await post("/stalls", { id })).text;
				}
				await new Promise((resolve) => setTimeout(resolve, 20));
			}
			sender.abort();
			assert.match(text, /settle the key/);
			assert.equal(service.runs, before + 1);
		});
		await t.test("a request without a key passes", async () => {
			const before = service.runs;
			await post("/hook", {});
			await post("/hook", {});
			assert.equal(service.runs, before + 2);
		});
		for (const [what, body, status] of [
			["an error", { fails: true }, 500],
			["a refusal", {}, 422],
		] as const) {
			await t.test(`${what} frees the key`, async () => {
				const id = randomUUID();
				service.status = status;
				assert.equal((await post("/hook", { id, ...body })).status, status);
				service.status = 201;
				assert.equal((await post("/hook", { id })).status, 201);
			});
		}
		await t.test("a repetition while the first runs is sent again later", async () => {
			const id = randomUUID();
			const before = service.runs;
			released = new Promise((resolve) => {
				release = resolve;
			});
			const first = post("/hook", { id, slow: true });
			while (service.runs === before) {
				await new Promise((resolve) => setTimeout(resolve, 5));
			}
			const second = await post("/hook", { id, slow: true });
			assert.equal(second.status, 503);
			assert.ok(Number(second.headers.get("retry-after")) > 0);
			release();
			assert.equal((await first).status, 201);
			assert.equal(service.runs, before + 1);
		});
		await t.test("a failure that is kept is answered with 422", async () => {
			const id = randomUUID();
			const failing = client.once(["/hook", id], () => {
				throw new Permanent("no such account");
			});
			await assert.rejects(failing, Permanent);
			const response = await post("/hook", { id });
			assert.equal(response.status, 422);
			assert.match(response.text, /no such account/);
		});
	});
}
