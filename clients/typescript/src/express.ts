import type { IncomingMessage, ServerResponse } from "node:http";
import type { Client } from "./client.js";
import { Unknown } from "./errors.js";
import { body, headers, type RespondOptions, type Response, respondOnce } from "./respond.js";

/** A handler of Express. */
type Handler<Req, Res> = (req: Req, res: Res, next: (reason?: unknown) => void) => unknown;

/**
 * Returns middleware for Express that lets a handler run once for a path and an id. A repetition of a request gets
 * the same response. The response is sent when the key is settled, so a sender that has it may forget the request.
 * Without `handler`, the handlers behind the middleware run. Then an error of them frees the key, also one that
 * leaves open whether the effect took place, because the middleware sees only its response.
 */
export function once<Req extends IncomingMessage, Res extends ServerResponse>(
	client: Client,
	options: RespondOptions<Req>,
	handler?: Handler<Req, Res>,
): (req: Req, res: Res, next: (reason?: unknown) => void) => void {
	return (req, res, next) => {
		const run = (pass: (reason?: unknown) => void) => {
			if (handler === undefined) {
				pass();
			} else {
				(async () => handler(req, res, pass))().catch((reason) => pass(reason ?? new Error("the handler failed")));
			}
		};
		const id = options.key(req);
		if (id === undefined) {
			run(next);
			return;
		}
		const held = new HeldResponse(res);
		const handle = () => {
			run((reason) => {
				held.failure = reason;
				next(reason);
			});
			return held.ended;
		};
		// Express takes the path of a router off the url.
		const url = (req as { originalUrl?: string }).originalUrl ?? req.url ?? "";
		respondOnce(client, url, id, handle, options).then((instead) => held.release(instead), next);
	};
}

/** Keeps what handlers write to a response until it is released. */
class HeldResponse {
	readonly ended: Promise<Response>;
	/** What the handler failed with. */
	failure: unknown;
	readonly #parts: Buffer[] = [];
	readonly #restore: () => void;

	constructor(private readonly res: ServerResponse) {
		const { write, writeHead, flushHeaders, end, destroy } = res;
		this.#restore = () => Object.assign(res, { write, writeHead, flushHeaders, end, destroy });
		res.flushHeaders = () => {};
		res.writeHead = ((status: number, ...rest: unknown[]) => {
			res.statusCode = status;
			for (const [name, value] of Object.entries(rest.find((arg) => typeof arg === "object") ?? {})) {
				res.setHeader(name, value);
			}
			return res;
		}) as typeof writeHead;
		res.write = ((...args: unknown[]) => {
			this.#keep(args);
			return true;
		}) as typeof write;
		this.ended = new Promise((resolve, reject) => {
			res.end = ((...args: unknown[]) => {
				this.#keep(args);
				this.#restore();
				const type = res.getHeader("content-type");
				const body = Buffer.concat(this.#parts);
				const broken = this.#hasBody() && Number(res.getHeader("content-length") ?? body.length) !== body.length;
				resolve({
					status: res.statusCode,
					...(typeof type === "string" ? { type } : {}),
					body: body.toString("base64"),
					broken,
					failure: this.failure,
				});
				return res;
			}) as typeof end;
			// A sender that leaves changes nothing: the handler goes on. Only code destroys a response.
			res.destroy = ((...args: []) => {
				this.#restore();
				reject(new Unknown("semel: the handler broke its response off"));
				return res.destroy(...args);
			}) as typeof destroy;
		});
		this.ended.catch(() => {}); // nobody waits for it if the handler did not run
	}

	#hasBody(): boolean {
		return this.res.req.method !== "HEAD" && ![204, 304].includes(this.res.statusCode);
	}

	/** Sends what the handlers wrote, or another response. */
	release(instead: Response | undefined): void {
		const { res } = this;
		this.#restore();
		if (instead === undefined) {
			const whole = Buffer.concat(this.#parts);
			if (this.#hasBody() && res.hasHeader("content-length")) {
				res.setHeader("content-length", whole.length); // an error handler may have written after a part
			}
			res.end(whole);
			return;
		}
		for (const name of res.getHeaderNames()) {
			res.removeHeader(name);
		}
		res.statusCode = instead.status;
		for (const [name, value] of Object.entries(headers(instead))) {
			res.setHeader(name, value);
		}
		res.end(body(instead));
	}

	/** Keeps the bytes among the arguments of write or end, and calls the callback. */
	#keep([part, ...rest]: unknown[]): void {
		const encoding = rest.find((arg) => typeof arg === "string") as BufferEncoding | undefined;
		if (typeof part === "string") {
			this.#parts.push(Buffer.from(part, encoding));
		} else if (part instanceof Uint8Array) {
			this.#parts.push(Buffer.from(part)); // a copy: the handler may use its bytes again
		}
		const callback = [part, ...rest].find((arg) => typeof arg === "function") as (() => void) | undefined;
		if (callback !== undefined) {
			queueMicrotask(callback);
		}
	}
}
