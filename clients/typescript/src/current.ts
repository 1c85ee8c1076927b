import { AsyncLocalStorage } from "node:async_hooks";
import type { Claim } from "./client.js";

// It makes all promises of a process slower once it is used, so `once` hands its claim over instead.
const running = new AsyncLocalStorage<Claim>();

/** Calls a function in which `current` returns the claim. */
export function within<T>(claim: Claim, fn: () => T): T {
	return running.run(claim, fn);
}

/** Returns the claim of the function that runs under `wrap`, or behind an adapter of this package. */
export function current(): Claim {
	const claim = running.getStore();
	if (claim === undefined) {
		throw new Error("semel: no function runs here under wrap or behind an adapter: once hands its claim over");
	}
	return claim;
}
