import type { Answer } from "./answer.js";
import { look } from "./clock.js";
import type { Send } from "./transport.js";

/** The answer to one operation, by its members, and `sent`: when its last try began. */
export type Reply = Record<string, unknown>;

/** The most items and bytes of a request: below what the server takes, 1,000 and 1 MiB. */
const mostItems = 1000;
const mostBytes = 1_000_000;
/** The most requests that are on their way at once. While they are, operations gather. */
const mostRequests = 4;
/** So many operations leave without waiting for more: the server answers them while others gather. */
const enough = 32;

/** The words that answer a claim. With any other one, another call holds the key. */
const decisions = new Set(["fresh", "duplicate", "mismatch", "unknown", "late"]);

/** A refusal of the server, or its silence. */
export class Problem extends Error {
	constructor(
		/** The last part of the problem's type, such as `stale-token`. */
		readonly kind: string,
		detail: string,
		/** Whether the same request can succeed: not at all, sent again, or later. */
		readonly retry: "no" | "same" | "later",
		readonly after = 0,
		/** The operation may have been done: a try of it was not answered. */
		readonly inDoubt = false,
	) {
		super(detail);
	}
}

/** One item of a request. It is repeated until it is answered, which repeats no effect. */
interface Operation {
	verb: "claim" | "complete" | "release" | "extend";
	body: string;
	/** How long one try may take, in milliseconds. */
	timeout: number;
	/** On the clock of `performance.now()`. */
	deadline: number;
	/** Until then a claim of a key that is in flight is repeated. */
	waitUntil: number;
	tries: number;
	/** An earlier try may have reached the server. */
	inDoubt: boolean;
	resolve: (reply: Reply) => void;
	reject: (problem: Problem) => void;
}

/** Sends operations. Those that arrive together share one request. */
export class Caller {
	#waiting: Operation[] = [];
	#requests = 0;
	#scheduled = false;

	constructor(
		readonly send: Send,
		readonly timeout: number,
	) {}

	/**
	 * Returns the reply to an operation. Repeats it for at most `patience` ms while there is
	 * none, and a claim for `wait` ms, also while its key is in flight. A try ends after a third of
	 * the lease, so that a claim whose answer is lost is repeated within it. Throws a Problem.
	 */
	call(verb: Operation["verb"], body: string, patience: number, lease: number, wait = 0): Promise<Reply> {
		return new Promise((resolve, reject) => {
			const now = performance.now();
			this.#queue({
				verb,
				body,
				timeout: Math.min(this.timeout, lease / 3),
				deadline: now + Math.max(patience, wait),
				waitUntil: now + wait,
				tries: 0,
				inDoubt: false,
				resolve,
				reject,
			});
		});
	}

	/** Sends a request of its own, once. Throws a Problem. */
	async request(path: string, body: string, timeout = this.timeout): Promise<Reply> {
		let answer: Answer;
		try {
			answer = await this.send(path, body, timeout);
		} catch (reason) {
			// The error of a name with several addresses has no message.
			const { message, code } = reason as NodeJS.ErrnoException;
			throw new Problem("", message || String(code), "same");
		}
		let reply: unknown;
		try {
			reply = JSON.parse(answer.text);
		} catch {
			reply = undefined; // a server in between has answered
		}
		if (answer.status !== 200) {
			throw problemOf(reply, answer.status, answer.retryAfter);
		}
		if (!isObject(reply)) {
			throw new Problem("", "the answer is no JSON object", "same");
		}
		return reply;
	}

	#queue(operation: Operation): void {
		this.#waiting.push(operation);
		this.#schedule();
	}

	/** Sends what waits: at once if that is enough, and otherwise after all that happens now. */
	#schedule(): void {
		if (this.#waiting.length >= enough) {
			this.#flush();
		} else if (this.#waiting.length > 0 && !this.#scheduled) {
			this.#scheduled = true;
			setImmediate(() => {
				this.#scheduled = false;
				this.#flush();
			});
		}
	}

	#flush(): void {
		while (this.#waiting.length > 0 && this.#requests < mostRequests) {
			this.#requests++;
			this.#exchange(this.#take()).finally(() => {
				this.#requests--;
				this.#schedule();
			});
		}
	}

	#take(): Operation[] {
		let bytes = 0;
		const end = this.#waiting.findIndex(({ body }, i) => {
			bytes += Buffer.byteLength(body) + 20;
			return i === mostItems || (i > 0 && bytes > mostBytes);
		});
		return this.#waiting.splice(0, end < 0 ? this.#waiting.length : end);
	}

	async #exchange(operations: Operation[]): Promise<void> {
		const items = operations.map(({ verb, body }) => `{"${verb}":${body}}`);
		const sent = look();
		let replies: unknown[];
		try {
			const timeout = Math.min(...operations.map((operation) => operation.timeout));
			const reply = await this.request("/v1/batch", `{"items":[${items.join()}]}`, timeout);
			look(); // the machine may have slept meanwhile
			replies = itemsOf(reply, operations.length);
		} catch (reason) {
			const problem = reason as Problem;
			if (problem.retry === "no" && operations.length > 1) {
				for (const operation of operations) {
					await this.#exchange([operation]); // one of them must not refuse the others
				}
				return;
			}
			for (const operation of operations) {
				this.#fail(operation, problem);
			}
			return;
		}
		operations.forEach((operation, i) => {
			const reply = replies[i];
			if (!isObject(reply)) {
				this.#fail(operation, new Problem("", "an item of the answer is no object", "same"));
			} else if (reply.error !== undefined) {
				this.#fail(operation, problemOf(reply.error, 0, undefined));
			} else if (operation.verb === "claim" && !readable(reply)) {
				this.#fail(operation, new Problem("", `the answer is no decision: ${JSON.stringify(reply)}`, "same"));
			} else if (!this.#waits(operation, reply)) {
				reply.sent = sent;
				operation.resolve(reply);
			}
		});
	}

	#waits(operation: Operation, reply: Reply): boolean {
		const decided = decisions.has(String(reply.decision));
		return operation.verb === "claim" && !decided && this.#again(operation, 0, operation.waitUntil);
	}

	#fail(operation: Operation, problem: Problem): void {
		operation.inDoubt ||= problem.retry === "same";
		if (problem.kind === "stale-token" && operation.verb === "release" && operation.inDoubt) {
			operation.resolve({}); // its first try gave the key back
		} else if (problem.retry === "no" || !this.#again(operation, problem.after, operation.deadline)) {
			operation.reject(new Problem(problem.kind, problem.message, problem.retry, problem.after, operation.inDoubt));
		}
	}

	/** Repeats an operation after a pause, unless that is after the deadline. */
	#again(operation: Operation, after: number, deadline: number): boolean {
		operation.tries++;
		const pause = Math.min(25 * 2 ** Math.min(operation.tries, 6), 1000) * (0.5 + Math.random() / 2);
		const wait = Math.max(pause, after);
		if (performance.now() + wait > deadline) {
			return false;
		}
		setTimeout(() => this.#queue(operation), wait);
		return true;
	}
}

/** Returns the items of an answer, one for each that was sent. */
export function itemsOf(reply: Reply, length: number): unknown[] {
	if (!Array.isArray(reply.items) || reply.items.length !== length) {
		throw new Problem("", "the answer does not have one item for each that was sent", "same");
	}
	return reply.items;
}

export function isObject(value: unknown): value is Reply {
	return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Reports whether a granted claim has what its holder needs. */
function readable({ decision, token, lease_ms, attempt = 1 }: Reply): boolean {
	const granted = typeof token === "string" && /^\d+$/.test(token) && typeof lease_ms === "number";
	return decision !== "fresh" || (granted && typeof attempt === "number");
}

/**
 * Reads a problem document. A server in between may have answered without one, and this one may have done what it was
 * asked.
 */
export function problemOf(answer: unknown, httpStatus: number, retryAfter: number | undefined): Problem {
	const document = isObject(answer) ? answer : {};
	const status = typeof document.status === "number" ? document.status : httpStatus;
	const kind =
		String(document.type ?? "")
			.split("/")
			.at(-1) ?? "";
	const detail = String(document.detail ?? document.title ?? `HTTP status ${status}`);
	const after = typeof document.retry_after_ms === "number" ? document.retry_after_ms : (retryAfter ?? 0);
	const told = (["no", "same", "later"] as const).find((word) => word === document.retry);
	const unclear = status === 0 || status >= 500;
	const retry = told ?? (unclear ? "same" : [408, 425, 429].includes(status) ? "later" : "no");
	return new Problem(kind, detail, retry, after);
}
