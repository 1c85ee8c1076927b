import type { CallOptions, Claim, Client } from "./client.js";
import { InFlight, Late, Mismatch, NotKept, Permanent, SemelError, Unknown } from "./errors.js";
import type { PartId } from "./key.js";

/** What this module uses of a job of BullMQ. */
interface Job {
	id?: string | undefined;
	/** When it was added. */
	timestamp: number;
	name: string;
	queueName: string;
	moveToDelayed(timestamp: number, token?: string): Promise<void>;
}

export interface ProcessorOptions<J> extends CallOptions {
	/**
	 * With the name of the job, its key. Default: its id. If BullMQ made that, it is a number of a counter which begins
	 * again when the queue is obliterated, so the time at which the job was added is part of the key.
	 */
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
		if (options.key === undefined && job.id === undefined) {
			throw new TypeError(`a job of ${job.queueName} has no id: name a key`);
		}
		const id = options.key ? [job.name, options.key(job)].flat() : idOf(job);
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

/** BullMQ lets nobody else choose a number as an id. */
function idOf({ id, timestamp }: Job): PartId {
	return /^\d+$/.test(id as string) ? [id as string, timestamp] : (id as string);
}

/** An error that BullMQ knows by its name, so that it is no dependency of this package. */
function named(name: string, reason: unknown): Error {
	const error = new Error((reason as Error).message, { cause: reason });
	error.name = name;
	return error;
}
