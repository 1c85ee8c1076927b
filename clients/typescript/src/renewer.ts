import { type Caller, isObject, itemsOf, type Problem, problemOf } from "./caller.js";
import { look, now } from "./clock.js";

const none = Promise.resolve();

/** A claim whose lease is renewed. */
export interface Renewed {
	/** How long a lease is, in milliseconds. */
	readonly lease: number;
	/** When it ends, on the clock of this package. */
	validUntil: number;
	/** From then on it is not renewed. */
	readonly renewUntil: number;
	/** The body of a request of the holder. */
	body(members: string): string;
	/** Called once if the lease is lost. */
	lose(why: string): void;
}

/**
 * Renews the leases of all claims of a client after a third of each, in one request. Time
 * counts from before a request, so no lease is believed to be longer than the server says.
 */
export class Renewer {
	readonly #claims = new Set<Renewed>();
	#timer: NodeJS.Timeout | undefined;
	/** When the timer ends. */
	#wake = Number.POSITIVE_INFINITY;
	/** The renewals that are on their way. Of each claim there is one at most. */
	readonly #renewals = new Map<Renewed, Promise<void>>();

	constructor(private readonly caller: Caller) {}

	add(claim: Renewed): void {
		this.#claims.add(claim);
		this.#wakeAt(due(claim));
	}

	/** The promise is kept when no renewal of the claim is on its way. */
	remove(claim: Renewed): Promise<void> {
		this.#claims.delete(claim);
		if (this.#claims.size === 0) {
			this.#sleep();
		}
		return this.#renewals.get(claim) ?? none;
	}

	#sleep(): void {
		clearTimeout(this.#timer);
		this.#wake = Number.POSITIVE_INFINITY;
	}

	#wakeAt(time: number): void {
		if (time < this.#wake) {
			clearTimeout(this.#timer);
			this.#wake = time;
			this.#timer = setTimeout(() => this.#renew(), time - now());
		}
	}

	async #renew(): Promise<void> {
		this.#sleep();
		const began = look();
		for (const claim of this.#claims) {
			const stopped = claim.validUntil <= began;
			if ((stopped || claim.renewUntil <= began) && this.#claims.delete(claim)) {
				claim.lose(
					stopped
						? "the lease ended while the process was stopped"
						: "the function takes longer than renewFor, so its lease is not renewed any more",
				);
			}
		}
		const free = [...this.#claims].filter((claim) => !this.#renewals.has(claim));
		// One that is due soon comes along, so that all are due together from then on.
		const claims = free.filter((claim) => due(claim) <= began + claim.lease / 6);
		const requests: Promise<void>[] = [];
		for (let first = 0; first < claims.length; first += 1000) {
			const part = claims.slice(first, first + 1000);
			const request = this.#extend(part, began);
			requests.push(request);
			for (const claim of part) {
				this.#renewals.set(claim, request);
			}
		}
		this.#wakeFor(
			free.filter((claim) => !this.#renewals.has(claim)),
			began,
		);
		await Promise.all(requests);
		for (const claim of claims) {
			this.#renewals.delete(claim);
		}
		this.#wakeFor(claims, began);
	}

	/** Wakes when the next of these claims is due. A renewal that failed is repeated four times in the time of one. */
	#wakeFor(claims: readonly Renewed[], began: number): void {
		for (const claim of claims) {
			if (this.#claims.has(claim)) {
				this.#wakeAt(Math.max(due(claim), began + claim.lease / 12));
			}
		}
	}

	async #extend(claims: Renewed[], began: number): Promise<void> {
		const items = claims.map((claim) => claim.body(`"lease":"${claim.lease}ms"`));
		const timeout = Math.min(this.caller.timeout, ...claims.map((claim) => claim.lease / 3));
		let replies: unknown[] = [];
		let silence = "";
		try {
			const reply = await this.caller.request("/v1/extend", `{"items":[${items.join()}]}`, timeout);
			replies = itemsOf(reply, claims.length);
		} catch (reason) {
			if (claims.length > 1 && (reason as Problem).retry === "no") {
				// The server takes fewer items, or one of them refuses the others.
				const half = Math.ceil(claims.length / 2);
				await Promise.all([this.#extend(claims.slice(0, half), began), this.#extend(claims.slice(half), began)]);
				return;
			}
			silence = String(reason);
		}
		const time = look();
		claims.forEach((claim, i) => {
			const reply = replies[i];
			const { lease_ms, error } = isObject(reply) ? reply : {};
			if (typeof lease_ms === "number") {
				claim.validUntil = began + lease_ms;
				return;
			}
			const problem = problemOf(error, 0, undefined);
			if ((problem.retry === "no" || claim.validUntil <= time) && this.#claims.delete(claim)) {
				claim.lose(
					problem.retry === "no" ? problem.message : `the lease could not be renewed: ${silence || problem.message}`,
				);
			}
		});
	}
}

function due(claim: Renewed): number {
	return claim.validUntil - (claim.lease * 2) / 3;
}
