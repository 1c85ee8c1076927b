/** The base of all errors of this package. */
export class SemelError extends Error {
	/** The same call may succeed later, without a person. */
	readonly retry: boolean = false;

	constructor(message: string, options?: ErrorOptions) {
		super(message, options);
		this.name = new.target.name;
	}
}

/** Another call holds the key. Nothing ran. Repeat the call after `retryAfterMs`. */
export class InFlight extends SemelError {
	override readonly retry = true;

	constructor(
		message: string,
		/** Who holds the key, if that is known. */
		readonly holder: string | undefined,
		readonly retryAfterMs: number,
	) {
		super(message);
	}
}

/**
 * Nobody knows whether the effect took place. Nothing ran now. A person finds out, and
 * settles the key with `semel keys resolve`. Throw this error from a function that cannot
 * know its outcome, for instance after a timeout of its own.
 */
export class Unknown extends SemelError {}

/** The key was used with another payload: two different requests have one id. Nothing ran. */
export class Mismatch extends SemelError {}

/** The message is older than the window, and its key is forgotten. Nothing ran. */
export class Late extends SemelError {}

/** The effect took place, and its result was not kept, so there is none to return. */
export class NotKept extends SemelError {}

/**
 * A failure that no repetition can fix. Throw it from a function: it is kept as the result
 * of the key, and each duplicate gets it again, with `replayed` set.
 */
export class Permanent extends SemelError {
	replayed = false;
}

/** The function ran, and another call may have had the key meanwhile. */
export class LeaseLost extends SemelError {
	override readonly retry = true;
}

/** The server does not answer. `ran` says whether the function ran before: its completion may be recorded, or not. */
export class Unavailable extends SemelError {
	override readonly retry = true;

	constructor(
		message: string,
		readonly ran: boolean,
		options?: ErrorOptions,
	) {
		super(message, options);
	}
}

/**
 * The server refuses the request: its form, its size or its credentials. `ran` says whether the function ran before:
 * its completion may not be recorded.
 */
export class Refused extends SemelError {
	constructor(
		message: string,
		/** The last part of the problem's type, such as `key-invalid`. */
		readonly problem: string,
		readonly ran: boolean,
		options?: ErrorOptions,
	) {
		super(message, options);
	}
}
