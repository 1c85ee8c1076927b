import { randomBytes } from "node:crypto";
import os from "node:os";
import { Caller, Problem, type Reply } from "./caller.js";
import { look, now } from "./clock.js";
import { within } from "./current.js";
import { leaves } from "./doubt.js";
import {
	InFlight,
	Late,
	LeaseLost,
	Mismatch,
	NotKept,
	Permanent,
	Refused,
	SemelError,
	Unavailable,
	Unknown,
} from "./errors.js";
import { fingerprint, type Id, keyMembers } from "./key.js";
import { type Renewed, Renewer } from "./renewer.js";
import { transport } from "./transport.js";

/** How keys are claimed. Durations are milliseconds. */
export interface Policy {
	/** The key space. Two effects of the same message need two scopes. Default: `default`. */
	scope?: string;
	/** How long a process that died keeps its claim. It is renewed while the function runs. Default: 30,000. */
	lease?: number;
	/** How long a key is remembered after its effect, in milliseconds or as `7d`. Default: `24h`. */
	window?: number | string;
	/** After a process died: `hold` makes the key unknown, `retry` lets the function run again. Default: `hold`. */
	onLeaseExpired?: "hold" | "retry";
	/** How long a call waits for another one that holds the key. Default: 0. */
	wait?: number;
	/** How long a call is repeated while the server gives no answer. Default: 30,000. */
	retryFor?: number;
	/**
	 * How long the lease is renewed, at most, for a function that never ends. Then the lease ends, as if the
	 * process had died. If the function ends after all, its key is completed. Default: for ever; 300,000 in the
	 * middleware of web frameworks.
	 */
	renewFor?: number;
	/**
	 * Whether another failure leaves open if the effect took place. Unknown, aborts, timeouts and connections that
	 * ended do, also as the cause of another error, or as one of an AggregateError.
	 */
	inDoubt?: (reason: unknown) => boolean;
}

export interface ClientOptions extends Policy {
	/** Such as `https://semel.example` or `unix:/run/semel.sock`. Default: `SEMEL_URL`, then `http://127.0.0.1:4196`. */
	url?: string;
	/** The bearer token. Default: `SEMEL_API_TOKEN`. */
	token?: string;
	/** The name that others see while they wait. Default: host and process id. */
	holder?: string;
	/** How long one request may take before it is repeated. Default: 10,000. */
	timeout?: number;
	/** Certificates, as `https.request` takes them. */
	tls?: { ca?: string | Buffer; cert?: string | Buffer; key?: string | Buffer };
}

export interface CallOptions extends Policy {
	/** What the request asks for, as bytes or as JSON: another payload under the same key is a Mismatch. */
	payload?: unknown;
	/** The time of the message: one that is older than the window is Late. */
	time?: Date;
	/** Where the call comes from, and its request: others see them. */
	origin?: string;
	requestId?: string;
}

/** What a function gets to know. */
export interface Claim {
	/** Above 1 if an earlier attempt may have had its effect. */
	readonly attempt: number;
	/** The fencing token: a later holder of the key has a higher one. */
	readonly token: bigint;
	/** Aborted when the lease is lost. Hand it to whatever takes an AbortSignal. */
	readonly signal: AbortSignal;
}

/** The outcome of a call. */
export interface Outcome<T> {
	/** What the function returned, in this call or in the one of which this is a duplicate. */
	value: T;
	/** The effect took place in an earlier call. */
	replayed: boolean;
}

/** Values that are longer as JSON are not kept: with other members, the server would refuse them. */
const mostResult = 900_000;

/** A client of `semel serve`. Make one for a process and share it. There is nothing to close. */
export class Client {
	readonly #caller: Caller;
	readonly #renewer: Renewer;
	readonly #policy: Required<Policy>;
	readonly #holder: string;
	/** The members of claims with that policy. */
	readonly #terms: string;
	/** With a number, the id of a claim. No other client has the same. */
	readonly #instance = randomBytes(16).toString("base64url");
	#claims = 0;

	constructor(options: ClientOptions = {}) {
		const url = options.url ?? process.env.SEMEL_URL ?? "http://127.0.0.1:4196";
		const send = transport(url, options.token ?? process.env.SEMEL_API_TOKEN, options.tls ?? {});
		this.#caller = new Caller(send, options.timeout ?? 10_000);
		this.#renewer = new Renewer(this.#caller);
		this.#holder = options.holder ?? `${os.hostname()}:${process.pid}`;
		this.#policy = policyOf(options, {
			scope: "default",
			lease: 30_000,
			window: "24h",
			onLeaseExpired: "hold",
			wait: 0,
			retryFor: 30_000,
			renewFor: Number.POSITIVE_INFINITY,
			inDoubt: () => false,
		});
		this.#terms = terms(this.#policy, this.#holder);
	}

	/**
	 * Calls a function unless its effect has taken place, and returns its value, or that of
	 * the first call as JSON has it. If the function throws, its key is free again. If it
	 * throws Permanent, that is kept; if it throws Unknown, a person settles the key.
	 *
	 * Throws InFlight, Unknown, Mismatch, Late or NotKept if nothing ran, and LeaseLost if
	 * the function ran and another call may have had the key meanwhile. Throws Unavailable
	 * or Refused if the server does not do its part.
	 */
	async once<T>(id: Id, fn: (claim: Claim) => T | Promise<T>, options?: CallOptions): Promise<Outcome<T>> {
		refuseGenerator(fn);
		const policy = options === undefined ? this.#policy : policyOf(options, this.#policy);
		const key = keyMembers(policy.scope, id);
		const reply = await this.#claim(key, policy, options);
		if (reply.decision === "duplicate") {
			return { value: replay(key, reply.result) as T, replayed: true };
		}
		if (reply.decision !== "fresh") {
			throw notRun(key, reply);
		}
		const held = new Held(key, reply, policy);
		if (held.validUntil <= now()) {
			await this.#giveBack(held, policy, undefined); // the process was stopped meanwhile
			throw new InFlight(`semel: ${name(key)}: the lease ended before the function began`, undefined, 0);
		}
		this.#renewer.add(held);
		let value: T;
		try {
			value = await fn(held);
			if (isIterator(value)) {
				const what = `semel: ${name(key)}: the function returned an iterator, and its effect may have happened`;
				throw new TypeError(what, { cause: new Unknown(what) }); // nobody knows what of it is the effect
			}
		} catch (reason) {
			if (reason instanceof Permanent) {
				await this.#complete(held, policy, failed(reason));
			} else {
				await this.#giveBack(held, policy, reason);
			}
			throw reason;
		}
		await this.#complete(held, policy, kept(held.key, value));
		return { value, replayed: false };
	}

	/**
	 * Returns a function that runs once for the key that `key` finds in its arguments. In it, `current` returns the
	 * claim.
	 */
	wrap<A extends unknown[], T>(
		key: (...args: A) => Id,
		fn: (...args: A) => T | Promise<T>,
		options?: CallOptions,
	): (...args: A) => Promise<Outcome<T>> {
		refuseGenerator(fn);
		return (...args) => this.once(key(...args), (claim) => within(claim, () => fn(...args)), options);
	}

	/** Returns the record of each key. Its `state` is absent, claimed, done or unknown. */
	async lookup(ids: readonly Id[], scope = this.#policy.scope): Promise<Reply[]> {
		const items = ids.map((id) => `{${keyMembers(scope, id)}}`);
		const reply = await this.#caller
			.request("/v1/lookup", `{"items":[${items.join()}]}`)
			.catch((problem) => raise("lookup", problem, false));
		return reply.items as Reply[];
	}

	/**
	 * Settles an unknown key, by a person's decision. This needs the role operator. After Unavailable it may be
	 * settled: look it up.
	 */
	async resolve(
		id: Id,
		{ happened, reason }: { happened: boolean; reason: string },
		scope = this.#policy.scope,
	): Promise<void> {
		const key = keyMembers(scope, id);
		const members = JSON.stringify({ as: happened ? "done" : "absent", reason }).slice(1);
		await this.#caller
			.request("/v1/resolve", `{${key},${members}`)
			.catch((problem) => raise(name(key), problem, false));
	}

	async #claim(key: string, policy: Required<Policy>, options: CallOptions | undefined): Promise<Reply> {
		const said = options === undefined ? this.#terms : `${terms(policy, this.#holder)}${facts(options)}`;
		const body = `{${key},"claim_id":"${this.#instance}.${++this.#claims}",${said}}`;
		try {
			return await this.#caller.call("claim", body, policy.retryFor, policy.lease, policy.wait);
		} catch (problem) {
			if (problem instanceof Problem && problem.inDoubt) {
				this.#disown(key, body, policy);
			}
			raise(`${name(key)}: nothing ran`, problem, false);
		}
	}

	/**
	 * Gives back the claim of a call that was given up without an answer, if the server granted it. It asks for as
	 * long as a lease. Then the lease of a claim that was granted has ended.
	 */
	async #disown(key: string, body: string, policy: Required<Policy>): Promise<void> {
		try {
			const reply = await this.#caller.call("claim", body, policy.lease, policy.lease);
			if (reply.decision === "fresh") {
				await this.#giveBack(new Held(key, reply, policy), policy, undefined);
			}
		} catch {
			// the server is still silent
		}
	}

	/** Completes the key of a function that ended, in any case: without its result, if that cannot be kept. */
	async #complete(held: Held, policy: Required<Policy>, { result, unfit }: Kept): Promise<void> {
		held.end();
		const patience = Math.max(policy.retryFor, policy.lease);
		const send = (result: string) => {
			const body = held.body(`"window":"${duration(policy.window)}"${result}`);
			return this.#caller.call("complete", body, patience, policy.lease);
		};
		try {
			try {
				await send(result);
			} catch (problem) {
				const refused = problem instanceof Problem && problem.retry === "no" && problem.kind !== "stale-token";
				if (!refused || result === notKept) {
					throw problem;
				}
				await send(notKept);
			}
			if (unfit !== undefined) {
				throw unfit;
			}
		} catch (problem) {
			if (problem instanceof Problem && problem.kind === "stale-token") {
				throw new LeaseLost(
					`semel: ${name(held.key)}: the function ran, but another call may have had the key: ${problem.message}`,
					{ cause: problem },
				);
			}
			raise(`${name(held.key)}: the function ran, and may not be recorded`, problem, true);
		} finally {
			await this.#renewer.remove(held);
		}
	}

	/** Settles the key of a function that threw. Its lease ends by itself if that fails. */
	async #giveBack(held: Held, policy: Required<Policy>, reason: unknown): Promise<void> {
		held.end();
		await this.#renewer.remove(held); // a renewal on its way would come after what is sent now
		const send = (verb: "release" | "extend", members: string) =>
			this.#caller.call(verb, held.body(members), policy.retryFor, policy.lease).catch(() => undefined);
		const says = reason === undefined || reason instanceof SemelError; // it says itself whether anything ran
		const inDoubt = leaves(reason) || (!says && policy.inDoubt(reason));
		if (inDoubt && policy.onLeaseExpired === "hold") {
			await send("release", '"unknown":true');
		} else if (inDoubt || held.attempt > 1) {
			await send("extend", '"lease":"1ms"'); // the next attempt must know of this one
		} else {
			await send("release", "");
		}
	}
}

/** Refuses a function of which a call runs nothing. */
function refuseGenerator(fn: unknown): void {
	if (/GeneratorFunction]$/.test(Object.prototype.toString.call(fn))) {
		throw new TypeError("semel: the function is a generator: iterate over it in a function, and return the result");
	}
}

/** Reports whether a value is work to be done: a generator runs when somebody iterates over it. */
function isIterator(value: unknown): boolean {
	const found = value as { next?: unknown; [Symbol.iterator]?: unknown; [Symbol.asyncIterator]?: unknown } | null;
	return (
		typeof found === "object" &&
		typeof found?.next === "function" &&
		(Symbol.iterator in found || Symbol.asyncIterator in found)
	);
}

/** The member of a completion that keeps a result, and the error of a value that JSON cannot hold. */
interface Kept {
	result: string;
	unfit?: TypeError;
}

/** The member of a completion whose result cannot be kept. */
const notKept = ',"result":{"not_kept":true}';

/** How many characters of a permanent failure are kept. One that is not kept looks like an effect that took place. */
const mostFailure = 10_000;

function failed({ message }: Permanent): Kept {
	return { result: `,"result":{"failed":${JSON.stringify(message.slice(0, mostFailure))}}` };
}

function kept(key: string, value: unknown): Kept {
	let json: string | undefined;
	try {
		json = JSON.stringify(value);
	} catch (cause) {
		const what = "the effect is recorded, but not its value, which JSON cannot hold";
		return { result: notKept, unfit: new TypeError(`semel: ${name(key)}: ${what}`, { cause }) };
	}
	if (json === undefined) {
		return { result: "" };
	}
	return { result: Buffer.byteLength(json) > mostResult ? notKept : `,"result":{"json":${json}}` };
}

/** A claim that this process holds. */
class Held implements Claim, Renewed {
	readonly attempt: number;
	readonly #token: string;
	/** Made on demand: a signal takes longer to make than the rest of a call. */
	#abort: AbortController | undefined;
	#lost: LeaseLost | undefined;
	#ended = false;
	readonly lease: number;
	readonly renewUntil: number;
	validUntil: number;

	constructor(
		readonly key: string,
		reply: Reply,
		policy: Required<Policy>,
	) {
		this.lease = policy.lease;
		this.renewUntil = Number(reply.sent) + policy.renewFor;
		this.attempt = Number(reply.attempt ?? 1);
		this.#token = String(reply.token);
		this.validUntil = Number(reply.sent) + Number(reply.lease_ms);
	}

	get token(): bigint {
		return BigInt(this.#token);
	}

	get signal(): AbortSignal {
		if (this.validUntil <= look()) {
			this.lose("the lease ended while the process was stopped");
		}
		if (this.#abort === undefined) {
			this.#abort = new AbortController();
			if (this.#lost !== undefined) {
				this.#abort.abort(this.#lost);
			}
		}
		return this.#abort.signal;
	}

	/** The body of a request of the holder, with more members. */
	body(members: string): string {
		return `{${this.key},"token":"${this.#token}"${members === "" ? "" : ","}${members}}`;
	}

	/** The function has ended, so nobody cares for its signal any more. What the server says decides. */
	end(): void {
		this.#ended = true;
	}

	lose(why: string): void {
		if (this.#ended || this.#lost !== undefined) {
			return;
		}
		this.#lost = new LeaseLost(`semel: ${name(this.key)}: ${why}`);
		this.#abort?.abort(this.#lost);
	}
}

/** Returns a policy whose fields are those of the options, where they have them. */
function policyOf(options: Policy, base: Required<Policy>): Required<Policy> {
	return {
		scope: options.scope ?? base.scope,
		lease: options.lease ?? base.lease,
		window: options.window ?? base.window,
		onLeaseExpired: options.onLeaseExpired ?? base.onLeaseExpired,
		wait: options.wait ?? base.wait,
		retryFor: options.retryFor ?? base.retryFor,
		renewFor: options.renewFor ?? base.renewFor,
		inDoubt: options.inDoubt ?? base.inDoubt,
	};
}

/** The members of a claim that its policy says. */
function terms(policy: Required<Policy>, holder: string): string {
	const window = JSON.stringify(duration(policy.window));
	return `"holder":${JSON.stringify(holder)},"lease":"${policy.lease}ms","window":${window},"on_lease_expired":${JSON.stringify(policy.onLeaseExpired)}`;
}

/** The members of a claim that its call says, behind others. */
function facts(options: CallOptions): string {
	// JSON leaves out what is undefined.
	const members = JSON.stringify({
		fingerprint: options.payload === undefined ? undefined : fingerprint(options.payload),
		time: options.time?.toISOString(),
		origin: options.origin,
		request_id: options.requestId,
	}).slice(1, -1);
	return members === "" ? "" : `,${members}`;
}

function duration(value: number | string): string {
	return typeof value === "string" ? value : `${value}ms`;
}

/** Returns a kept result. This package writes JSON, another program may write bytes. */
function replay(key: string, result: unknown): unknown {
	const kept = (result ?? {}) as Record<string, string | undefined>;
	if (kept.kind === "failed") {
		const failure = new Permanent(kept.text ?? "");
		failure.replayed = true;
		throw failure;
	}
	if (kept.kind === "not_kept") {
		throw new NotKept(`semel: ${name(key)}: the effect took place, and its result was not kept`);
	}
	if (kept.base64 !== undefined) {
		return new Uint8Array(Buffer.from(kept.base64, "base64"));
	}
	try {
		return kept.text === undefined ? undefined : JSON.parse(kept.text);
	} catch {
		return kept.text;
	}
}

/** Returns the error of a call whose function did not run. An unknown word means in flight. */
function notRun(key: string, reply: Reply): SemelError {
	const holder = reply.holder as string | undefined;
	const by = holder ? ` (held by ${holder})` : "";
	switch (reply.decision) {
		case "unknown":
			return new Unknown(
				`semel: ${name(key)}: an earlier call may have had its effect: look, and settle the key with semel keys resolve${by}`,
			);
		case "mismatch":
			return new Mismatch(`semel: ${name(key)}: the key was used with another payload${by}`);
		case "late":
			return new Late(`semel: ${name(key)}: the message is older than the window, and its key forgotten`);
		default:
			return new InFlight(
				`semel: ${name(key)}: another call holds the key${by}`,
				holder,
				typeof reply.retry_after_ms === "number" ? reply.retry_after_ms : 1000,
			);
	}
}

/** Throws the error that a caller knows. `what` says what failed. */
function raise(what: string, problem: unknown, ran: boolean): never {
	if (!(problem instanceof Problem)) {
		throw problem;
	}
	const message = `semel: ${what}: ${problem.message}`;
	if (problem.retry === "no") {
		throw new Refused(message, problem.kind, ran, { cause: problem });
	}
	throw new Unavailable(message, ran, { cause: problem });
}

/** A key as people read it. */
function name(key: string): string {
	return `{${key}}`;
}
