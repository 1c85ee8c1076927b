import os from "node:os";

/**
 * How far the clock of the machine is ahead of that of the process, which stands still on Linux while the machine
 * sleeps. It is read first: a process that is stopped in between does not seem to have slept.
 */
const ahead = process.platform === "linux" ? () => 1000 * os.uptime() - performance.now() : () => 0;
const aheadAtFirst = ahead();
let slept = 0;

/** Milliseconds on a clock that nobody sets, and that counts how long the machine slept until the last look. */
export function now(): number {
	return performance.now() + slept;
}

/** Looks how long the machine slept, which takes 10 us, and returns the time now. */
export function look(): number {
	slept = Math.max(slept, ahead() - aheadAtFirst);
	return now();
}
