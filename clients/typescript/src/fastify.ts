import type { Client } from "./client.js";
import { Unknown } from "./errors.js";
import { body, headers, type RespondOptions, type Response, respondOnce } from "./respond.js";

/** What this module uses of a FastifyReply. */
interface Reply {
	statusCode: number;
	code(status: number): Reply;
	getHeader(name: string): unknown;
	headers(values: Record<string, string>): Reply;
	removeHeader(name: string): unknown;
	send(payload?: unknown): Reply;
}

/** A request whose handler runs under a claim. */
interface Running {
	ended(response: Response): void;
	broke(reason: Unknown): void;
	/** What the handler failed with. */
	failure?: unknown;
	/** What to send instead of the handler's response. */
	instead: Promise<Response | undefined>;
}

/**
 * Returns hooks for a route of Fastify whose handler runs once for a path and an id. A repetition of
 * a request gets the same response. The response is sent when the key is settled, so a
 * sender that has it may forget the request.
 *
 *     app.post("/hooks", { ...once(client, { key: (request) => request.body.id }) }, handler)
 */
export function once<Req extends object>(client: Client, options: RespondOptions<Req>) {
	const running = new WeakMap<object, Running>();
	return {
		preHandler(request: Req, reply: Reply, done: (error?: Error) => void): void {
			const id = options.key(request);
			if (id === undefined) {
				done();
				return;
			}
			const handle = () =>
				new Promise<Response>((ended, broke) => {
					running.set(request, { ended, broke, instead });
					done();
				});
			const instead = respondOnce(client, (request as { url?: string }).url ?? "", id, handle, options);
			instead.then(
				(response) => {
					if (!running.has(request) && response !== undefined) {
						reply.code(response.status).headers(headers(response)).send(body(response));
					}
				},
				(reason) => (running.has(request) ? undefined : done(reason)),
			);
		},

		onError(request: Req, _reply: Reply, failure: unknown, done: () => void): void {
			const exchange = running.get(request);
			if (exchange !== undefined) {
				exchange.failure = failure;
			}
			done();
		},

		onSend(
			request: Req,
			reply: Reply,
			payload: unknown,
			done: (error?: Error | null, payload?: unknown) => void,
		): void {
			const exchange = running.get(request);
			if (exchange === undefined) {
				done(null, payload);
				return;
			}
			const type = reply.getHeader("content-type");
			let sent = payload;
			whole(payload).then(
				(bytes) => {
					sent = bytes ?? payload;
					exchange.ended({
						status: reply.statusCode,
						...(typeof type === "string" ? { type } : {}),
						...(bytes === undefined ? {} : { body: bytes.toString("base64") }),
						broken: bytes !== undefined && Number(reply.getHeader("content-length") ?? bytes.length) !== bytes.length,
						failure: exchange.failure,
					});
				},
				(cause) => exchange.broke(new Unknown("semel: the response broke off", { cause })),
			);
			exchange.instead.then((response) => {
				if (response === undefined) {
					done(null, sent);
					return;
				}
				reply.removeHeader("content-length");
				reply.code(response.status).headers(headers(response));
				done(null, body(response));
			}, done);
		},
	};
}

/** The bytes of a payload. A stream is read to its end: a handler has not responded before. */
async function whole(payload: unknown): Promise<Buffer | undefined> {
	if (typeof payload === "string" || payload instanceof Uint8Array) {
		return Buffer.from(payload);
	}
	if (typeof payload !== "object" || payload === null || !(Symbol.asyncIterator in payload)) {
		return undefined;
	}
	const parts: Buffer[] = [];
	for await (const part of payload as AsyncIterable<string | Uint8Array>) {
		parts.push(Buffer.from(part as Uint8Array));
	}
	return Buffer.concat(parts);
}
