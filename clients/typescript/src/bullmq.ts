import type { CallOptions, Claim, Client } from "./client.js";
import { InFlight, Late, Mismatch, NotKept, Permanent, SemelError, Unknown } from "./errors.js";
import type { PartId } from "./key.js";

/** What this module uses of a job of BullMQ. */
interface Job {
	id?: string | undefined;
	name: string;
	queueName: string;
	moveToDelayed(timestamp: number, token?: string): Promise<void>;
}

export interface ProcessorOptions<J> extends CallOptions {
	/** With the name of the job, its key. Default: its id alone, which no other job of the queue has. */
	key?(job: J): PartId;
}

/**
 * Returns a processor for a Worker of BullMQ whose function runs once for a job, although
 * BullMQ starts a stalled job again. A job that another worker holds is delayed, without
 * counting an attempt, and so is one that lost its lease, or gets no answer from the server. An UnrecoverableError is recorded: the job is not run again.
 */
export function processor<J extends Job, T>(
	client: Client,
	fn: (job: J, claim: Claim) => T | Promise<T>,
	options: ProcessorOptions<J> = {},
): (job: J, token?: string) => Promise<T | undefined> {
	return async (job, token) => {
		const id = options.key ? [job.name, options.key(job)].flat() : job.id;
		if (id === undefined) {
			throw new TypeError(`a job of ${job.queueName} has no id: name a key`);
		}
		const run = async (claim: Claim) => {
			try {
				return await fn(job, claim);
			} catch (reason) {
				if (reason instanceof Error && reason.name === "UnrecoverableError") {
					throw new Permanent(reason.message, { cause: reason });
				}
				throw reason;
			}
		};
		try {
			const outcome = await client.once(id, run, { scope: `bullmq:${job.queueName}`, ...options });
			return outcome.value;
		} catch (reason) {
			if (reason instanceof SemelError && reason.retry) {
				const pause = Math.max(reason instanceof InFlight ? reason.retryAfterMs : 0, 1000);
				await job.moveToDelayed(Date.now() + pause, token);
				throw named("DelayedError", reason);
			}
			if (reason instanceof NotKept) {
				return undefined;
			}
			const final = [Late, Mismatch, Permanent, Unknown].some((kind) => reason instanceof kind);
			throw final ? named("UnrecoverableError", reason) : reason;
		}
	};
}

/** An error that BullMQ knows by its name, so that it is no dependency of this package. */
function named(name: string, reason: unknown): Error {
	const error = new Error((reason as Error).message, { cause: reason });
	error.name = name;
	return error;
}
