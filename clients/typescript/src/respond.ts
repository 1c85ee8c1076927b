import type { CallOptions, Claim, Client } from "./client.js";
import { within } from "./current.js";
import { InFlight, NotKept, Permanent, SemelError, Unknown } from "./errors.js";
import type { PartId } from "./key.js";

/** What the middleware of a web framework needs. */
export interface RespondOptions<Request> extends CallOptions {
	/**
	 * Finds the id of a request, such as that of its event. The key is the path and this id. A request without an id
	 * passes.
	 */
	key(request: Request): PartId | undefined;
	/** Which statuses say that the request took effect. Others free its key. Default: 200 to 399. */
	succeeded?(status: number): boolean;
	/** The largest body, in bytes, that a repetition gets again. Default: 65,536. */
	keep?: number;
}

/** A response of a handler, and what is remembered of it. */
export interface Response {
	status: number;
	type?: string;
	/** In base64. */
	body?: string;
	/** The handler announced a longer body, or a shorter one. */
	broken?: boolean;
	/** What the handler failed with. */
	failure?: unknown;
	/** Not remembered. */
	headers?: Record<string, string>;
}

/** How long a handler may take before its key becomes unknown, if the options do not say. */
const renewFor = 300_000;

/** Thrown for a response that does not say that the request took effect. */
class NotDone extends SemelError {}

/**
 * Lets a handler respond once for the path of its request and an id: a sender may send one event to two receivers.
 * `handle` starts the handler and returns its
 * response, which must not be sent before this function returns. A handler that broke its
 * response off rejects with Unknown. Returns the response to send instead, or nothing if that of the handler is right.
 */
export async function respondOnce<Request>(
	client: Client,
	url: string,
	id: PartId,
	handle: () => Promise<Response>,
	options: RespondOptions<Request>,
): Promise<Response | undefined> {
	const path = url.split("?", 1)[0] as string;
	let failed: { reason: unknown } | undefined;
	try {
		const bounded = { origin: path, ...options, renewFor: options.renewFor ?? renewFor };
		const run = async (claim: Claim) => {
			const response = await within(claim, handle);
			if (!(options.succeeded ?? succeeded)(response.status)) {
				failed = { reason: response.failure ?? new NotDone("the response is an error") };
				throw failed.reason;
			}
			return remembered(response, options);
		};
		const outcome = await client.once([path, id].flat(), run, bounded);
		return outcome.replayed ? { ...outcome.value, headers: { "semel-decision": "duplicate" } } : undefined;
	} catch (reason) {
		if (reason === failed?.reason) {
			return undefined; // the handler's response is right
		}
		if (reason instanceof SemelError) {
			return refusal(reason);
		}
		throw reason;
	}
}

function succeeded(status: number): boolean {
	return status >= 200 && status < 400;
}

function remembered<Request>(response: Response, options: RespondOptions<Request>): Response {
	if (response.broken) {
		throw new Unknown("semel: the handler announced another length of its response than it wrote");
	}
	const { body, headers: _, broken: __, failure: ___, ...rest } = response;
	const bytes = ((body?.length ?? 0) * 3) / 4;
	return body !== undefined && bytes <= (options.keep ?? 65_536) ? { ...rest, body } : rest;
}

/** Senders of webhooks give a message up after a 4xx, so only a recorded failure is one. */
function refusal(reason: SemelError): Response {
	const body = Buffer.from(JSON.stringify({ title: reason.name, detail: reason.message })).toString("base64");
	const type = "application/problem+json";
	if (reason instanceof NotKept) {
		return { status: 200 };
	}
	if (reason instanceof Permanent) {
		return { status: 422, type, body };
	}
	const seconds = reason instanceof InFlight ? Math.ceil(reason.retryAfterMs / 1000) : 5;
	return { status: 503, type, body, headers: { "retry-after": String(seconds) } };
}

/** The headers of a response. */
export function headers(response: Response): Record<string, string> {
	return { ...response.headers, ...(response.type === undefined ? {} : { "content-type": response.type }) };
}

/** The bytes of a response. */
export function body(response: Response): Buffer {
	return Buffer.from(response.body ?? "", "base64");
}
